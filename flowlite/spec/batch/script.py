"""Splits the `#SBATCH` lines of a batch script into options, as sbatch(1) does."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from flowlite.errors import SpecError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.sbatch.getopt import OptionError, find, read
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.batch.table import LONG, TABLE
from flowlite.spec.taskfile import read_text

_MARK = "#SBATCH"
_LARGEST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a script: its full name, its value (None if it has none), and its line number."""

    name: str
    value: str | None
    line: int


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A batch script.

    Attributes:
        directives: In their order; if an option is given twice, the last one counts.
        passed_over: Lines that look like directives but that sbatch does not read, each with the reason.
    """

    path: Path
    text: str
    directives: tuple[Directive, ...]
    passed_over: tuple[tuple[int, str], ...]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file. Raises SpecError with file and line if it is no batch script, or has an unknown option."""
        path = Path(path)
        return cls.parse(read_text(path), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Self:
        """Reads a text. Raises the errors of `load`."""
        if not text.startswith("#!"):
            raise SpecError(
                f"{path}:1: a batch script begins with #! and the program that runs it, as in #!/bin/bash"
            )
        if "\r\n" in text:
            raise SpecError(
                f"{path}: its lines end as on Windows (CR LF), which no shell reads: dos2unix {path}"
            )
        if "\0" in text or len(text) > _LARGEST:
            raise SpecError(f"{path}: it has zero bytes, or is larger than 4 MiB")
        found: list[Directive] = []
        passed: list[tuple[int, str]] = []
        begun = 0
        for number, line in enumerate(text.split("\n"), 1):
            mark = line.lstrip().startswith(_MARK)
            if begun:
                if mark:
                    passed.append((number, f"it stands behind the first command, in line {begun}"))
            elif line.startswith(_MARK):
                found += _options(line[len(_MARK) :], f"{path}:{number}", number)
            elif mark:
                passed.append((number, "there are blanks in front of it"))
            elif line.strip() and not line.lstrip().startswith("#"):
                begun = number
        return cls(path, text, tuple(found), tuple(passed))

    def values(self) -> dict[str, Directive]:
        """The effective directive of each option, by name."""
        return {each.name: each for each in self.directives}


def looks_like_batch(path: str) -> bool:
    """Whether a file is a batch script, judged by its name or by directives before the first command."""
    if path.endswith((".sbatch", ".slurm")):
        return True
    if path.endswith((".py", ".yaml", ".yml")):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if not file.readline().startswith("#!"):
                return False
            for line in file:
                if line.startswith(_MARK):
                    return True
                if line.strip() and not line.lstrip().startswith("#"):
                    return False
    except OSError:
        return False
    return False


def words_of(line: str, where: str) -> list[str]:
    """The words of the text after `#SBATCH`. Quotes and backslashes work as in a shell; `#` begins a comment."""
    words: list[str] = []
    word, quote, inside, escaped = "", "", False, False
    for letter in line:
        if escaped:
            word, inside, escaped = word + letter, True, False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word += letter
        elif letter in "'\"":
            quote, inside = letter, True
        elif letter.isspace():
            if inside:
                words.append(word)
            word, inside = "", False
        elif letter == "#" and not inside:
            return words
        else:
            word, inside = word + letter, True
    if quote:
        raise SpecError(f"{where}: a quote {quote} is not closed")
    return [*words, word] if inside else words


def _options(line: str, where: str, number: int) -> list[Directive]:
    words = words_of(line, where)
    if words[:1] in (["hetjob"], ["packjob"]):
        raise SpecError(
            f"{where}: a job of several parts (hetjob) cannot run as one gang; make a script of each part"
        )
    try:
        given, rest, unknown = read(words, TABLE)
        if unknown:
            name = unknown[0].lstrip("-")
            hint = did_you_mean(name, LONG) if len(name) > 1 else ""
            raise SpecError(f"{where}: sbatch has no option {unknown[0]}{hint}")
        if rest:
            hint = ""
            if find(rest[0].partition("=")[0], TABLE):
                hint = f"; did you mean '--{rest[0]}'?"
            raise SpecError(f"{where}: {rest[0]!r} is no option{hint}")
    except OptionError as error:
        raise SpecError(f"{where}: {error}") from None
    return [Directive(each.name, each.value, number) for each in given]
