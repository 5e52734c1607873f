"""Tables of the pages that are made from the code: they hold what the code holds."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path

from flowlite import errors
from flowlite.node.worker import environment
from flowlite.settings import settings
from flowlite.spec.options import TaskOptions

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def environment_rows() -> list[str]:
    """The table of a worker's variables."""
    rows = []
    for row in environment.TABLE:
        only = f" ({row.modes[0]} mode only)" if len(row.modes) == 1 else ""
        rows.append(f"| `{row.name}` | {row.meaning}{only} |")
    return rows


def error_tree() -> str:
    """The tree at the top of errors.py."""
    text = inspect.getdoc(errors) or ""
    return textwrap.dedent(text.split("\n\n")[1])


def test_the_tree_of_errors() -> None:
    assert error_tree() in (DOCS / "results-and-errors.md").read_text()


def test_the_environment_of_a_worker() -> None:
    page = (DOCS / "multi-node.md").read_text()
    assert "\n".join(environment_rows()) in page


def test_every_option_is_explained() -> None:
    table = (DOCS / "decorator.md").read_text().partition("## Options")[2]
    missing = [name for name in TaskOptions.__annotations__ if f"`{name}`" not in table]
    assert not missing


def test_every_threat_has_a_test_that_exists() -> None:
    table = (DOCS / "security.md").read_text().partition("## Threats")[2]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    missing = []
    for row in rows:
        if not _NAMED_TEST.search(row):
            missing.append(f"no test is named: {row}")
    assert not missing, "\n".join(missing)


def test_every_test_that_a_page_names_exists() -> None:
    """As pytest takes its name: `file::test`, or `file::Class::test`."""
    missing = [
        f"{page.relative_to(DOCS)}: {path}::{name}"
        for page in DOCS.rglob("*.md")
        for path, name in _NAMED_TEST.findall(page.read_text())
        if name not in _tests_in(DOCS.parent / path)
    ]
    assert not missing, "\n".join(missing)


_NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::((?:\w+::)?\w+)")


@cache
def _tests_in(file: Path) -> frozenset[str]:
    """The tests of a file; none if there is no such file."""
    if not file.is_file():
        return frozenset()
    body = ast.parse(file.read_text()).body
    classes = [each for each in body if isinstance(each, ast.ClassDef)]
    found = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    found += [
        f"{c.name}::{m.name}" for c in classes for m in c.body if isinstance(m, ast.FunctionDef)
    ]
    return frozenset(found)


# Variables between processes of flowlite, which no user sets or reads.
INTERNAL = {
    "FLOW_CONTAINER",
    "FLOW_GANG",
    "FLOW_LEASE",
    "FLOW_PAUSED",
    "FLOW_PAUSED_ORDER",
    "FLOW_SUPERVISOR_BEGUN_ANEW",
    "FLOW_WARM_PADDING",
}


def test_every_variable_has_its_place() -> None:
    """What the code names is in the settings reference, in the table of a worker's variables, or internal."""
    root = DOCS.parent
    files = [*root.glob("flowlite/**/*.py"), *root.glob("provider_adapters/**/*.py")]
    used: set[str] = set()
    for file in files:
        if "testing" not in file.parts:
            used |= set(re.findall(r"\bFLOW_[A-Z][A-Z_]+[A-Z]\b", file.read_text()))
    known = set(re.findall(r"\bFLOW_[A-Z_]+\b", (DOCS / "reference" / "settings.md").read_text()))
    known |= {row.name for row in environment.TABLE}
    assert used - known - INTERNAL == set()


def setting_rows() -> list[str]:
    """The table of all settings."""
    return [
        f"| `{name}` | `FLOW_{name.upper()}` | {'none' if setting.default is None else f'`{setting.default}`'} "
        f"| {setting.help}{' (a task option, too)' if setting.task_option else ''} |"
        for name, setting in settings.SETTINGS.items()
    ]


def test_every_setting_is_explained() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    assert "\n".join(setting_rows()) in page
