"""What is imported on the way of a small call, where each import is waited for; how adapters are found."""

from __future__ import annotations

import gc
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.api import submission
from flowlite.settings import entry_points
from flowlite.spec import TaskConfig
from flowlite.supervise.process import supervisor_process

IMPORTED_BEFORE_THE_SUPERVISOR_STARTS = """
import subprocess, sys
from flowlite import FlowApp

app = FlowApp(provider="local")

@app.function()
def nothing():
    pass

def start(*_, **__):
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)

import os
subprocess.Popen.__init__ = start
nothing.remote()
"""


def modules_after(program: str) -> set[str]:
    """The modules that a Python has imported when it prints them."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


def test_a_call_starts_the_supervisor_before_it_imports_what_it_needs_itself(
    flow_home: Path,
) -> None:
    found = modules_after(IMPORTED_BEFORE_THE_SUPERVISOR_STARTS)
    assert "flowlite.supervise.process.supervisor_process" in found
    assert not found & {"flowlite.api.client", "flowlite.state.store", "sqlite3"}


def test_a_supervisor_imports_no_more_than_it_needs_to_begin() -> None:
    found = modules_after(
        "import sys; from flowlite.provider import adapter_class; import flowlite.supervise.process.main; "
        "from flowlite.state import clock; adapter_class('local'); print(*sys.modules)"
    )
    assert "provider_adapters.local.provider" in found
    assert not found & {"importlib.metadata", "flowlite.settings.settings"}
    assert not found & {"shutil", "tempfile", "flowlite.connect.ssh.half_open"}


def test_a_command_that_submits_nothing_needs_no_models(flow_home: Path) -> None:
    found = modules_after(
        "import sys; from flowlite.cli import main; sys.stdout = sys.stderr; main(['status']); "
        "print(*sys.modules, file=sys.__stdout__)"
    )
    assert "flowlite.cli.commands.status" in found
    assert not found & {"pydantic", "asyncio", "httpx", "paramiko"}


def test_to_plan_for_this_machine_needs_no_event_loop() -> None:
    found = modules_after(
        "import sys, provider_adapters.local.planning, provider_adapters.local; print(*sys.modules)"
    )
    assert "provider_adapters.local.provider" in found
    assert "asyncio" not in found


def test_a_client_imports_nothing_for_buckets_packages_and_notebooks_before_it_needs_it() -> None:
    found = modules_after(
        "import sys; import flowlite.api.client, flowlite.bucket_credentials, flowlite.display.waiting, "
        "flowlite.api.failures, provider_adapters.local.planning; print(*sys.modules)"
    )
    assert "flowlite.display.notebook" in found
    assert not found & {"xml.etree", "html", "importlib.metadata", "logging"}


def test_what_nearly_every_process_imports_compiles_few_patterns() -> None:
    """A long pattern takes up to 2 ms to compile. Supervisors, clients and workers of functions import these."""
    program = (
        "import csv, dataclasses, json, re._compiler as compiler, shlex, shutil, sys, urllib.parse; "
        "compile = compiler.compile; compiler.compile = lambda *given: print(given) or compile(*given); "
        "import flowlite.errors, flowlite.diagnosis.advice, flowlite.python_request"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert len(ran.stdout.splitlines()) <= 3, ran.stdout


def test_an_agent_imports_no_more_than_it_needs_to_begin() -> None:
    found = modules_after(
        "import sys; import flowlite.node.agent.main, flowlite.node.rendezvous.server; print(*sys.modules)"
    )
    assert not found & {"statistics", "fractions", "shutil", "tempfile"}
    assert not found & {"flowlite.node.preflight.gpu_health", "flowlite.node.leader_run.context"}


AGENT = """
import gc, pathlib, sys, types
from flowlite.node.agent import main
there, said = pathlib.Path(sys.argv[1]), []
(there / "agent.json").write_text("{}")
(there / "secret").write_text("s")
def say(*_):
    said.append(f"{gc.get_threshold()[0]} {gc.get_freeze_count()} {gc.isenabled()}")
    (there / "said").write_text("\\n".join(said))
needs = types.SimpleNamespace(imports_nothing=True, warm_spec=dict)
config = types.SimpleNamespace(trace=False, visible_gpus=None, workdir=None)
main.AgentConfig = types.SimpleNamespace(from_json=lambda _: config)
main.Agent = lambda *_: types.SimpleNamespace(needs=needs, run=lambda: None)
main.client = types.SimpleNamespace(fork=say)
main.asyncio = types.SimpleNamespace(run=say)
main.run_agent(there)
"""


def test_an_agent_seldom_looks_for_garbage_and_never_through_what_it_has_imported(
    tmp_path: Path,
) -> None:
    """However it was started. Its fork server, and so the workers, have the collector that Python sets."""
    subprocess.run([sys.executable, "-c", AGENT, str(tmp_path)], check=False, timeout=60)
    of_fork_server, of_agent = (tmp_path / "said").read_text().splitlines()
    threshold, frozen, enabled = of_agent.split()
    assert (int(threshold) >= 10_000, int(frozen) > 1000, enabled) == (True, True, "True")
    assert int(of_fork_server.split()[0]) == gc.get_threshold()[0]


def collections_in(setup: str, program: str) -> int:
    """How often the garbage collector has run in a program, after its setup."""
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import gc, sys; ran = []; gc.callbacks.append(lambda phase, _: ran.append(phase)); "
            f"{setup}; ran.clear(); {program}; print(ran.count('start'), file=sys.stderr)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ran.stderr.splitlines()[-1])


def test_a_command_looks_for_no_garbage_while_it_imports(flow_home: Path) -> None:
    setup = (
        "from flowlite.cli import program; sys.argv = ['flow', 'run', '--dry-run', '--', 'true']"
    )
    assert collections_in(setup, "assert program() == 0") == 0


def test_a_call_looks_for_no_garbage_while_it_imports(flow_home: Path) -> None:
    setup = (
        "from flowlite.api import submission; from flowlite.spec import TaskConfig; "
        "block = submission.supervisor_ahead(TaskConfig(command=['true'], provider='local')); block.__enter__()"
    )
    program = "import flowlite.api.client, flowlite.supervise.process.launch; found = ran[:]"
    after = "block.__exit__(None, None, None); assert gc.isenabled(); ran[:] = found"
    assert collections_in(setup, f"{program}; {after}") == 0


FORK_SERVER = """node.main(["warm"])
assert gc.isenabled()
from flowlite.node.forkserver import server
spec = {"key": "", "function": True, "argv": [], "imports": ["json"], "idle": 0, "socket": ""}
began = server.ForkServer(spec, socket.socket())
# It has imported everything when it begins to wait for agents.
began._poll = None
with contextlib.suppress(AttributeError):
    began.serve()
assert "flowlite.node.worker.load_call" in sys.modules"""


FORK_SERVER_SETUP = (
    "import contextlib, socket; from flowlite.node import __main__ as node; "
    "node.SUBCOMMANDS['warm'] = ('forkserver.server', '_Caller', 0)"
)


def test_a_fork_server_looks_for_no_garbage_while_it_imports() -> None:
    # One after each part, when what was imported has been set aside already.
    assert collections_in(FORK_SERVER_SETUP, FORK_SERVER) <= 2


def test_a_collector_that_sitecustomize_has_turned_off_stays_off_in_a_fork_server() -> None:
    """Its workers are forked from it, and are to be like a Python of their own."""
    program = "gc.disable(); node.main(['warm']); assert not gc.isenabled()"
    assert collections_in(FORK_SERVER_SETUP, program) == 0


def test_a_submission_within_a_call_starts_no_second_supervisor(flow_home: Path) -> None:
    config = TaskConfig(command=["true"], provider="local")
    with submission.supervisor_ahead(config):
        first = supervisor_process.ahead()
        assert first is not None
        with submission.supervisor_ahead(config):
            assert supervisor_process.ahead() is first
        assert supervisor_process.ahead() is first
    assert supervisor_process.ahead() is None


def test_adapters_are_found_as_importlib_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, text in (
        ("one-1.0.dist-info", "[console_scripts]\nlocal2 = one:main\n"),
        (
            "two-1.0.dist-info",
            "[other]\na = b:c\n\n[flowlite.providers]\n# a comment\n"
            "spaced = two.places : Place [extra]\nplain=two:P.Q\n",
        ),
        ("three.egg-info", "[flowlite.providers]\nold = three:Old\n"),
    ):
        (tmp_path / package).mkdir()
        name = package.partition("-")[0].removesuffix(".egg")
        (tmp_path / package / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        )
        (tmp_path / package / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    there = importlib.metadata.entry_points(group=entry_points.GROUP)
    expected = {each.name: (each.module, each.attr) for each in there}
    assert {"spaced", "plain", "old", "local"} <= set(expected)
    assert {name: tuple(place) for name, place in entry_points.adapters().items()} == expected


def test_packages_that_are_there_twice_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version in front, an egg, names in other letters, and two packages that want the same name."""
    for metadata, name, text in (
        (
            "front/Acme_Cloud-2.0.dist-info",
            "acme-cloud",
            "acme = acme2:Provider\nsame = acme2:Same",
        ),
        ("front/Big-1.DIST-INFO", "big", "big = big\n"),
        ("front/last-1.0-py3.11.egg/EGG-INFO", "last", "egg = last:Egg"),
        ("back/acme.cloud-1.0.dist-info", "acme.cloud", "acme = acme1:Old\ngone = acme1:Gone"),
        ("back/other-1.0.dist-info", "other", "same = other:Same"),
    ):
        directory = tmp_path / metadata
        directory.mkdir(parents=True)
        (directory / "entry_points.txt").write_text(f"[flowlite.providers]\n{text}\n")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        for file in ("METADATA", "PKG-INFO"):
            (directory / file).write_text(about)
    there = [tmp_path / "front", tmp_path / "front" / "last-1.0-py3.11.egg", tmp_path / "back"]
    monkeypatch.setattr(sys, "path", [*map(str, there), *sys.path])
    found = {name: tuple(place) for name, place in entry_points.adapters().items()}
    expected = {
        each.name: (each.module, each.attr or "")
        for each in importlib.metadata.entry_points(group=entry_points.GROUP)
    }
    assert found == expected
    assert "gone" not in found
    assert found["same"] == ("other", "Same")
    assert {"egg", "big", "local"} <= set(found)
