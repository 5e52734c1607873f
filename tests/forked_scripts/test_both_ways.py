"""A script cannot tell, but by the clock, whether it runs in a forked process or in a Python of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.script import script_call
from flowlite.node.system import processes
from flowlite.spec import TaskConfig
from tests.forked_scripts.both_ways import Seen, Server
from tests.forked_scripts.programs import FILES, PROGRAMS
from tests.helpers import kill_processes_of

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="processes are not forked elsewhere")

TASK = f"t-both-{os.getpid()}"
# Modules that the programs use, and more.
_AHEAD = """
    json logging multiprocessing multiprocessing.pool multiprocessing.queues warnings threading subprocess argparse
    asyncio decimal pickle random tempfile uuid concurrent.futures concurrent.futures.process inspect traceback ctypes
    dataclasses unittest.mock xml.dom.minidom sqlite3 rlcompleter
"""
HOOK = """
import sys

def look(*arguments):
    frame = sys._getframe(1)
    print("hook", frame.f_code.co_name, frame.f_lineno, frame.f_back, __name__, arguments)
"""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("scripts") / "project"
    for name, text in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    yield directory
    kill_processes_of(TASK)


@pytest.fixture(scope="module")
def server(project: Path) -> Iterator[Server]:
    call = {"imports": _AHEAD.split(), "late": [], "writes": []}
    environment = {"ONLY_THE_SERVER": "1"}
    argv = ["python", "-u", "program.py", "--lr", "0.1", "a b", ""]
    with Server(project, argv, TASK, environment, call) as made:
        assert made.state["hazard"] is None
        yield made


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_sees_and_shows_the_same(server: Server, project: Path, name: str) -> None:
    seen = []
    for forked in (False, True):
        (project / "program.py").write_text(PROGRAMS[name])
        seen.append(server.run(forked=forked, environment={"ONLY_THE_WORKER": "x y"}))
    fresh, here = seen
    assert here.why == ""
    assert _without_addresses(here) == _without_addresses(fresh)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-m", "package.module", "--x", "1"],
        ["python3", "-Oum", "package"],
        ["python", "-mpackage.module"],
        ["python", "-W", "error", "-X", "utf8", "-bB", "program.py"],
        ["python", "package"],
        ["python", "./package/../program.py"],
        ["python", "missing.py", "x"],
        ["python", "-m", "missing.module"],
    ],
    ids=" ".join,
)
def test_a_form_of_the_command_sees_and_shows_the_same(project: Path, argv: list[str]) -> None:
    look = "".join(
        PROGRAMS[each] + "\n" for each in ("arguments", "main", "path", "interpreter", "process")
    )
    (project / "program.py").write_text(look + "import warnings; warnings.warn('x')\n")
    call = {"imports": ["json", "logging", "subprocess"], "late": [], "writes": []}
    with Server(project, argv, TASK, None, call) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert _without_addresses(here) == _without_addresses(fresh)


@pytest.mark.parametrize(
    "words", ["calendar 2024 1", "json.tool --indent x", "zipfile -l missing.zip"]
)
def test_an_installed_module_sees_and_shows_the_same(project: Path, words: str) -> None:
    """With what `flow run` would have imported ahead; not the module itself, which Python would warn of."""
    argv = ["python", "-m", *words.split()]
    call = script_call(TaskConfig(command=argv), project)
    with Server(project, argv, TASK, None, call) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert _without_addresses(here) == _without_addresses(fresh)


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONDEVMODE": "1"},
        {"PYTHONFAULTHANDLER": "1"},
        {"PYTHONUNBUFFERED": ""},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONBREAKPOINT": "hooks.look"},
        {"PYTHONBREAKPOINT": "0"},
        {"PYTHONBREAKPOINT": "nothing.of_that_name"},
        {"PYTHONSAFEPATH": "1"},
        {"PYTHONMALLOC": "debug"},
        {"PYTHONIOENCODING": "latin1:replace"},
        {"PYTHONPYCACHEPREFIX": "/dev/null/pycache"},
        {"PYTHONNODEBUGRANGES": "1"},
    ],
    ids=str,
)
def test_pythons_own_variables_have_the_same_effect(
    project: Path, environment: dict[str, str]
) -> None:
    look = "".join(
        PROGRAMS[each] + "\n" for each in ("interpreter", "streams", "warnings", "memory")
    )
    (project / "program.py").write_text(f"{look}breakpoint()\nimport os\nos.abort()\n")
    (project / "hooks.py").write_text(HOOK)
    call = {"imports": ["json", "logging", "subprocess"], "late": [], "writes": []}
    # A fork server of its own for each.
    argv = ["python", "program.py", str(environment)]
    with Server(project, argv, TASK, environment, call) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert _without_addresses(here) == _without_addresses(fresh)


def test_a_console_script_sees_and_shows_the_same(project: Path) -> None:
    tool = Path(sys.executable).with_name(f"flow-both-ways-{os.getpid()}")
    look = "".join(
        PROGRAMS[each] + "\n" for each in ("arguments", "main", "path", "interpreter", "process")
    )
    tool.write_text(f"#!{sys.executable}\nimport json\n{look}raise SystemExit(3)\n")
    tool.chmod(0o755)
    try:
        with Server(project, [tool.name, "--version"], TASK) as server:
            assert server.call["imports"] == ["json", "sys", "os"]
            fresh, here = server.run(forked=False), server.run(forked=True)
    finally:
        tool.unlink()
    assert here.why == ""
    assert _without_addresses(here) == _without_addresses(fresh)


def _without_addresses(seen: Seen) -> list[Any]:
    return [_ADDRESS.sub("", str(each)) for each in seen.told]
