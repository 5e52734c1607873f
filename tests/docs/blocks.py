"""Code blocks of a page: found, and run in order as a reader would, in one directory and one interpreter.

    ```python           runs in the page's interpreter, whose `__main__` they share; with a first line `# NAME.py` the
                        block is that file instead, and only written
    ```yaml, ```toml    are files too, named by their first line
    ```bash             runs, and must succeed
    ```console          commands after "$ ", and the output they must have
    ```text             right after a Python block: what it must have printed

A comment `<!-- not run: reason -->` before a block leaves it out; `<!-- exit 1 -->` before a console block says how its
last command ends. In outputs, "..." stands for anything, and what differs from run to run (ids, times, dates, amounts
of seconds and bytes) matches its like. Lines of several ranks may come in any order.

A line `<!-- stack: NAME -->` has the whole page run in the environment that the function of that name in
tests/stacks/environments.py gives; where that cannot be installed the page is skipped, by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
STACK = re.compile(r"^<!-- stack: (\w+) -->$", re.MULTILINE)
EXIT = re.compile(r"<!-- exit (\d+) -->\s*\Z")
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|toml|txt))$")
DRIVER = """
import sys, traceback
scope = sys.modules["__main__"].__dict__
names = dict(scope)
while True:
    header = sys.stdin.readline().split(" ", 2)
    if len(header) < 3:
        break
    code = sys.stdin.read(int(header[0]))
    try:
        exec(compile("\\n" * int(header[1]) + code, header[2].strip(), "exec"), scope)
        end = "done"
    except BaseException:
        traceback.print_exc()
        end = "failed"
    sys.stdout.flush()
    sys.stderr.flush()
    print(f"\\n<<<{end}>>>", flush=True)
"""
# What differs from run to run, and the word that stands for it when outputs are compared.
CHANGING = [
    (re.compile(r"\bt[0-9a-z]{10}\b"), "TASK"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "DATE"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "CLOCK"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|m\d\ds)( ago)?(?!\w)"), "SECONDS"),
    (re.compile(r"\b\d+(\.\d+)? ?[kMG]?B\b"), "BYTES"),
    # pytest repeats times of more than a minute.
    (re.compile(r"(?<=SECONDS) \(\d+:\d\d:\d\d\)"), ""),
    (re.compile(r"\b(loss|accuracy) [01]\.\d+"), r"\1 NUMBER"),
    (re.compile(r"0\.\d{6,}"), "NUMBER"),
    (re.compile(r"/tmp/[\w./-]+"), "PATH"),
    (re.compile(r"-[0-9a-f]{4}-(?=\d{3})"), "-HASH-"),
    # Said where it takes more than three seconds.
    (re.compile(r"^not all hosts have answered yet\n", re.MULTILINE), ""),
    (re.compile(r"[ \t]+"), " "),
]


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    code: int = 0

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        skipped, code = NOT_RUN.search(before), EXIT.search(before)
        found.append(
            Block(
                page,
                before.count("\n") + 1,
                match[1],
                match[2],
                skipped[1] if skipped else "",
                int(code[1]) if code else 0,
            )
        )
    return found


def python_of(page: Path) -> str:
    """The Python that a page is run in. Skips the test where its stack cannot be installed."""
    named = STACK.search(page.read_text())
    if named is None:
        return sys.executable
    from tests.stacks import environments

    return str(getattr(environments, named[1])())


class Reader:
    """Somebody who works through a page."""

    def __init__(
        self, directory: Path, environment: dict[str, str], python: str = sys.executable
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._printed: str | None = None
        driver = directory / ".driver"
        driver.write_text(DRIVER)
        self._python = subprocess.Popen(
            [python, "-u", str(driver)],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        """Ends the interpreter."""
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.close()
        self._python.wait(90)
        self._python.stdout.close()

    def follow(self, block: Block) -> None:
        """Does what the block says. Raises AssertionError if that comes out otherwise than shown."""
        first = block.text.partition("\n")[0]
        named = FILE.fullmatch(first)
        if block.not_run:
            self._printed = None
        elif named and block.language in {"python", "yaml", "toml", "text"}:
            path = self._directory / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "python":
            self._printed = self._run_python(block)
        elif block.language == "bash":
            self._run_shell(block, block.text)
        elif block.language == "console":
            self._run_console(block)
        elif block.language == "text":
            if self._printed is not None:
                compare(block, block.text, self._printed)
                self._printed = None
        else:
            raise AssertionError(f"{block}: nothing is known of blocks of {block.language!r}")

    def _run_python(self, block: Block) -> str:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(f"{len(block.text)} {block.line} {block}\n{block.text}")
        self._python.stdin.flush()
        lines = []
        for line in self._python.stdout:
            if line == "<<<done>>>\n":
                return "".join(lines).removesuffix("\n")
            if line == "<<<failed>>>\n":
                break
            lines.append(line)
        raise AssertionError(f"{block}: {''.join(lines)}")

    def _run_console(self, block: Block) -> None:
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        for number, part in enumerate(parts, 1):
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                more, _, expected = expected.partition("\n")
                command = f"{command}\n{more}"
            last = number == len(parts)
            output = self._run_shell(block, command, block.code if last else 0)
            compare(block, expected, output)

    def _run_shell(self, block: Block, script: str, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == code, (
            f"{block}: {script!r} ended with {done.returncode}\n{done.stdout}"
        )
        return done.stdout


def compare(block: Block, expected: str, output: str) -> None:
    """Raises AssertionError unless the output is as shown."""
    wanted, got = settled(expected), settled(output)
    if any(line.startswith("[Node") for line in wanted):
        # Between ranks there is no order; what a "..." stands for may be anywhere.
        some = "..." in wanted
        shown = [line for line in wanted if line != "..."]
        matched = set(shown) <= set(got) if some else sorted(shown) == sorted(got)
    else:
        pattern = "".join(
            r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
            for line in wanted
        )
        matched = re.fullmatch(pattern, "".join(f"{line}\n" for line in got)) is not None
    assert matched, f"{block}: shown\n{chr(10).join(wanted)}\n\ncame\n{chr(10).join(got)}"


def settled(text: str) -> list[str]:
    """Lines with what changes taken out, and without empty lines at the end."""
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


# What a `make` that runs these tests sets, and the tests' own fixture.
_OF_TESTS = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "FLOW_SYNC")


def environment_of(home: Path, tools: Path, python: str = sys.executable) -> dict[str, str]:
    """What a reader's shell has: `flow` and `python` of an environment, and a fresh FLOW_HOME."""
    for name, module in (("flow", "-m flowlite.cli"), ("python", "")):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{python}" {module} "$@"\n')
        tool.chmod(0o755)
    # Its wheel has nothing but the program, beside this Python.
    program = Path(sys.executable).parent / "rclone"
    if program.exists():
        (tools / "rclone").symlink_to(program)
    ours = {
        name: text
        for name, text in os.environ.items()
        if name not in _OF_TESTS and not name.startswith("PYTEST_")
    }
    return {
        **ours,
        "FLOW_HOME": str(home),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        # `make train` takes the environment that the tests run in.
        "MAKEFLAGS": "e",
        "PY": sys.executable,
        "ENV_READY": "",
        # Pages show what programs print. What is shown of their tasks beside that is tried in tests/display.
        "FLOW_SHOW_LOGS": "never",
    }
