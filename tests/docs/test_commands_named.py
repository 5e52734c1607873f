"""Commands that pages and messages name in prose: each exists, with the options that are named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from flowlite import cli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = [
    *sorted((ROOT / "flowlite").rglob("*.py")),
    *sorted((ROOT / "provider_adapters").rglob("*.py")),
]
# What docs/troubleshooting.md shows as mistakes, with the messages that answer them.
MISTAKES = {"run --nodes 2 -- python plain.py", "run --timeout 1h -- python plain.py"}
# Of `--lr=3` and `--no-sync/--sync` the names.
OPTION = re.compile(r"--?[a-zA-Z][\w-]*")


@pytest.fixture(scope="module")
def flow() -> TyperGroup:
    command = get_command(cli._application(None))
    assert isinstance(command, TyperGroup)
    return command


def named_in(path: Path) -> Iterator[str]:
    """Inline code that begins with `flow`; blocks of code are run by tests of their own."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for found in re.finditer(r"`flow ([^`\n]+)`", text):
        yield found[1]


def options_of(command: Any) -> set[str]:
    """The names of the options of a command."""
    options = [each for each in command.params if isinstance(each, TyperOption)]
    return {name for each in options for name in (*each.opts, *each.secondary_opts)} | {
        "--help",
        "-h",
    }


def wrong_in(flow: TyperGroup, words: list[str]) -> str | None:
    """What of a command line does not exist; None if all of it does."""
    command: Any = flow
    while words and isinstance(command, TyperGroup):
        word = words.pop(0)
        if word.startswith("-"):
            if word not in options_of(command):
                return word
            continue
        if not re.fullmatch(r"[a-z-]+", word):  # A placeholder, such as `flow …`.
            return None
        if word not in command.commands:
            return word
        command = command.commands[word]
    known = options_of(command)
    for word in words:
        if word == "--" or "::" in word or word.endswith(".py"):
            return None  # What follows belongs to the user's program.
        for option in OPTION.findall(word) if word.startswith("-") else ():
            if option not in known and option[:2] not in known:
                return str(option)
    return None


def test_the_check_finds_what_does_not_exist(flow: TyperGroup) -> None:
    assert wrong_in(flow, ["check"]) == "check"
    assert wrong_in(flow, ["hosts", "ask"]) == "ask"
    assert wrong_in(flow, ["status", "--wide"]) == "--wide"
    assert wrong_in(flow, ["run", "-N2", "--dry-run", "train.py::train", "--lr", "3"]) is None


@pytest.mark.parametrize("paths", [PAGES, MODULES], ids=["pages", "modules"])
def test_commands_in_prose_exist(flow: TyperGroup, paths: list[Path]) -> None:
    wrong = []
    for path in paths:
        for line in set(named_in(path)) - MISTAKES:
            try:
                words = shlex.split(line)
            except ValueError:
                words = line.split()
            if missing := wrong_in(flow, words):
                wrong.append(f"{path.relative_to(ROOT)}: flow {line}: {missing} does not exist")
    assert not wrong, "\n".join(wrong)
