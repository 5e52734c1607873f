"""The site that `make docs` builds: every page is in its navigation, every public name in its reference.

That links and anchors lead somewhere is what the build itself checks, since it is strict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import flowlite

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the Python objects that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def pages_of(navigation: Any) -> Iterator[str]:
    """The pages of a navigation, at any depth."""
    if isinstance(navigation, str):
        yield navigation
    for inner in navigation if isinstance(navigation, list) else ():
        yield from pages_of(inner)
    for inner in navigation.values() if isinstance(navigation, dict) else ():
        yield from pages_of(inner)


def test_the_navigation_contains_every_page_once() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(pages_of(site["nav"])) == pages


def test_broken_links_fail_the_build() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
    assert site["strict"] is True
    assert set(site["validation"]["links"].values()) == {"warn"}


def test_the_reference_contains_every_public_name_once() -> None:
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    named = re.findall(r"^::: flowlite\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(set(flowlite.__all__) - {"__version__"})
