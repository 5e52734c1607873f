"""The rules of the house that no other test would notice breaking."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import flowlite
from tests.imports import PACKAGES, circles, import_graph

ROOT = Path(__file__).resolve().parent.parent
PUBLIC_NAMES = [
    "AnswerTooLong",
    "ArgumentError",
    "BundleError",
    "BundleWarning",
    "CapExceeded",
    "CapacityUnavailable",
    "Checkpoint",
    "ConfigError",
    "Flow",
    "FlowApp",
    "FlowError",
    "Function",
    "GpuRequest",
    "HostKeyError",
    "LogLine",
    "Logs",
    "NodeUnreachable",
    "NotFound",
    "PermissionRefused",
    "ProviderError",
    "QuotaExceeded",
    "RemoteError",
    "RemoteTraceback",
    "ResultUnavailable",
    "Retries",
    "Secret",
    "SpecError",
    "StoreDamaged",
    "StoreError",
    "Task",
    "TaskCancelled",
    "TaskConfig",
    "TaskFailed",
    "TaskTimeout",
    "Volume",
    "__version__",
    "as_completed",
    "should_stop",
]
# What a node may import beside the standard library, and only where it is used: cloudpickle travels with the agent,
# numpy and torch belong to the user's environment and are there if his values are made of them. annotationlib is in the
# standard library from Python 3.14 on.
NODE_MAY_IMPORT_LATE = {"annotationlib", "cloudpickle", "numpy", "torch"}
# A path of somebody's machine has no place in a tracked file. Test hosts have homes of their own.
FOREIGN_PATHS = re.compile(
    r"(?<![\w.])/(?:work|Users)/[\w.-]+|/home/(?!(?:me|you|user|flow)/)[a-z][\w.-]*/|/root/[\w.-]+"
)
# Ways to a terminal, and who may use them.
PRINTS = re.compile(
    r"std(out|err)\.(write|buffer)|^\s*print\(|Console\(|Live\(|StreamHandler\(|typer\.s?echo\(",
    re.MULTILINE,
)
PRINTING = {
    # Draw with rich what `cell` and `terminal.plain` have cleaned.
    "flowlite/cli/output.py",
    "flowlite/cli/commands/status.py",
    "flowlite/cli/commands/top.py",
    # Cleans every record.
    "flowlite/settings/request_log.py",
    # The text of a program that runs on nodes.
    # Is a program for hosts.
    "flowlite/connect/programs.py",
    # Write the supervisor's log, which is a file.
    "flowlite/supervise/record/log.py",
}
ON_TEST_HOSTS = re.compile(r"/root/(?!\.pyenv|\.venv)[\w.-]+")


def tracked_files() -> list[Path]:
    """Everything that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the rule is about tracked files")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def in_fresh_python(code: str) -> list[str]:
    """Runs code in a new interpreter; returns what it printed, as a JSON list."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


def test_public_names() -> None:
    assert sorted(flowlite.__all__) == PUBLIC_NAMES


def test_types_are_published() -> None:
    assert (ROOT / "flowlite" / "py.typed").is_file()


def test_supervisor_does_without_heavy_modules() -> None:
    loaded = in_fresh_python(
        "import json, sys, flowlite.supervise.process.supervisor, provider_adapters.local;"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))"
    )
    assert not {"pydantic", "typer", "rich", "paramiko", "torch", "numpy"} & set(loaded)


def test_floors() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_no_circles_of_imports_and_no_crowded_folders() -> None:
    """Every import counts, wherever it stands: a lazy one or one for types still ties two modules together."""
    imports = import_graph(ROOT)
    assert circles(imports.files) == []
    assert circles(imports.folders) == []
    crowded = {name: count for name, count in imports.modules_in.items() if count > 20}
    assert crowded == {}, (
        "a folder has at most 20 modules: move some that belong together into a subfolder; its `__init__.py` says what "
        "is in it"
    )


def test_no_two_classes_of_the_node_and_the_supervisor_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for room in ("node", "supervise"):
        for path in (ROOT / "flowlite" / room).rglob("*.py"):
            for each in ast.parse(path.read_text()).body:
                if isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
                    places.setdefault(each.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# Files that stand for a user's.
_EXAMPLES = {"FILE.py", "NAME.py", "random.py", "train.py"}


def test_each_room_is_described() -> None:
    """The docstring of its `__init__` says what the room knows, and where to start reading."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert len(text.splitlines()) >= 5, path.relative_to(ROOT)


def test_every_file_that_a_text_names_exists() -> None:
    """The texts are docstrings and comments of the product, and the two pages for people who change it."""
    files = {f"/{path.relative_to(ROOT)}" for path in tracked_files()}
    texts = {
        name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "docs/architecture.md")
    }
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        # To parse all sources takes seconds, and most of them name no file.
        if ".py" not in (source := path.read_text()):
            continue
        found = [
            ast.get_docstring(each) or ""
            for each in ast.walk(ast.parse(source))
            if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        found += re.findall(r"^\s*# .*", source, re.MULTILINE)
        texts[str(path.relative_to(ROOT))] = "\n".join(found)
    missing = [
        f"{name}: {file}"
        for name, text in texts.items()
        for file in re.findall(r"\w[\w./-]*\.py\b", text)
        if file.rpartition("/")[2] not in _EXAMPLES
        and not any(each.endswith(f"/{file}") for each in files)
    ]
    assert missing == []


def test_node_imports_the_standard_library_and_itself() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in sorted((ROOT / "flowlite" / "node").rglob("*.py"))
        for imported, at_top in imports_of(path)
        if imported not in ("", *sys.stdlib_module_names)
        and (at_top or imported not in NODE_MAY_IMPORT_LATE)
    ]
    assert not wrong, "\n".join(wrong)


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Top-level names of what a file imports ("" for its own package), and whether at the top of the file."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], id(node) in top
        elif isinstance(node, ast.ImportFrom):
            name = "" if node.level else (node.module or "").partition(".")[0]
            yield name, id(node) in top


def test_everything_is_printed_through_one_file() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix == ".py"
        and path.is_relative_to(ROOT / "flowlite")
        and not path.is_relative_to(ROOT / "flowlite" / "node")
        and not path.is_relative_to(ROOT / "flowlite" / "testing")
        and PRINTS.search(path.read_text())
    }
    assert found == PRINTING


def test_no_path_of_one_machine() -> None:
    found = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        # Most files have none, and are looked through in one pass.
        text = path.read_text(errors="replace")
        lines = text.splitlines() if FOREIGN_PATHS.search(text) else []
        for number, line in enumerate(lines, 1):
            if path.is_relative_to(ROOT / "tests"):
                line = ON_TEST_HOSTS.sub("", line)
            if FOREIGN_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_the_version_is_written_once() -> None:
    declared = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert declared is not None
    assert flowlite.__version__ == declared[1]


def test_the_source_archive_has_everything() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    # Hatchling adds these two by itself.
    by_itself = {"pyproject.toml", ".gitignore"}
    kept = {each.relative_to(ROOT).parts[0] for each in tracked_files()} - by_itself
    assert kept == included


def _requirements() -> dict[str, list[str]]:
    """What pyproject.toml asks for, by extra; "" for what everybody gets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        "": project["project"]["dependencies"],
        "build": project["build-system"]["requires"],
        **project["project"]["optional-dependencies"],
    }


def test_every_dependency_has_an_upper_bound() -> None:
    for extra, listed in _requirements().items():
        for each in map(Requirement, listed):
            bounds = [spec for spec in each.specifier if spec.operator in ("<", "==", "~=")]
            assert bounds, f"[{extra}] {each}: give it an upper bound by its major version"


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("requirements.lock", ["", "dev", "docs"]),
        ("benchmarks/requirements.lock", ["", "dev", "docs", "bench"]),
    ],
)
def test_the_lock_has_an_exact_version_of_all_that_is_asked_for(
    file: str, extras: list[str]
) -> None:
    lines = [each for each in (ROOT / file).read_text().splitlines() if each[:1] not in ("", "#")]
    # It says which versions, and not where they are from.
    assert not [each for each in lines if re.search(r"://|^-|@", each)]
    locked = {canonicalize_name(each.name): each for each in map(Requirement, lines)}
    assert all(re.fullmatch(r"==[^,*]+", str(each.specifier)) for each in locked.values())
    for extra in extras:
        for asked in map(Requirement, _requirements()[extra]):
            found = locked.get(canonicalize_name(asked.name))
            assert found is not None, f"{asked.name} is not in {file}; run `make lock`"
            version = str(found.specifier).removeprefix("==")
            assert asked.specifier.contains(version, prereleases=True), f"{asked}: {found}"
