"""Bounds on XML of S3, EC2 and STS, checked before it is parsed: the parsed form of some documents takes gigabytes.

A parser writes the namespace into the name of each element, keeps every name, and makes an object of each element and
each line of text. So 2 MB of distinct names in one long namespace become more than 6 GB.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.parsers import expat

ENCODING = "utf-8"
"""What the parser has to be told, so that it reads a document as it was checked."""

# Listings of EC2 and S3 take 30 bytes and more for an element, are some 15 deep, and have a few hundred names.
_MOST_ELEMENTS = 150_000
_LEAST_BYTES, _ELEMENTS_OF_ANY = 16, 1_000
_MOST_LINES = 300_000
_MOST_ATTRIBUTES = 50_000
_MOST_DEPTH = 64
_MOST_NAMES = 2_000
_MOST_NAMESPACES = 16
_LONGEST_NAME = 256


class XmlTooCostly(ValueError):
    """To parse the document would take too much memory. The text says why."""


def check(document: bytes) -> None:
    """Raises XmlTooCostly if a document has more than any listing has; one that is no XML passes.

    The parser may use namespaces, and must be told `ENCODING`.
    """
    # These are counted first, since expat collects all attributes of an element before it reports any.
    if document.count(b"=") > _MOST_ATTRIBUTES:
        raise XmlTooCostly("it has too many attributes")
    if sum(map(document.count, (b"\n", b"\r", b"&"))) > _MOST_LINES:
        raise XmlTooCostly("it has too many lines")
    bounds = _Bounds(min(_MOST_ELEMENTS, _ELEMENTS_OF_ANY + len(document) // _LEAST_BYTES))
    parser = expat.ParserCreate(ENCODING)
    parser.StartElementHandler = bounds.start
    parser.EndElementHandler = bounds.end
    parser.StartDoctypeDeclHandler = bounds.doctype
    try:
        parser.Parse(document, True)
    except expat.ExpatError:
        # The parser that follows stops at the same place, or earlier.
        return


def parse(document: bytes) -> ElementTree.Element:
    """Parses a document. Raises XmlTooCostly, and ElementTree.ParseError if it is no XML."""
    check(document)
    return ElementTree.fromstring(document, ElementTree.XMLParser(encoding=ENCODING))


class _Bounds:
    """Counts what a parser reports."""

    def __init__(self, elements: int) -> None:
        self._left = elements
        self._depth = 0
        self._names: set[str] = set()
        self._namespaces: set[str] = set()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._left -= 1 + len(attributes)
        if self._left < 0:
            raise XmlTooCostly("it has too many elements for its size")
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise XmlTooCostly(f"it is more than {_MOST_DEPTH} elements deep")
        if name not in self._names:
            self._take_name(name)
        for attribute, value in attributes.items():
            if attribute not in self._names:
                self._take_name(attribute)
            if attribute.startswith("xmlns"):
                self._take_namespace(value)

    def end(self, name: str) -> None:
        self._depth -= 1

    def doctype(self, *_: object) -> None:
        # It could define entities, which stand for any amount of text.
        raise XmlTooCostly("it has a document type")

    def _take_name(self, name: str) -> None:
        self._names.add(name)
        if len(name) > _LONGEST_NAME or len(self._names) > _MOST_NAMES:
            raise XmlTooCostly("its elements have too many names, or too long ones")

    def _take_namespace(self, name: str) -> None:
        self._namespaces.add(name)
        if len(name) > _LONGEST_NAME or len(self._namespaces) > _MOST_NAMESPACES:
            raise XmlTooCostly("it has too many namespaces, or too long ones")
