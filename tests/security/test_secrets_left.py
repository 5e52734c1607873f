"""Secrets of a task on hosts that nobody could give back: the host removes them itself."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.node.host_lease import secret_files
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

SECRET = "hunter2-correct-horse-battery"
TASKS = "/root/.flowlite-node/tasks"
RUN = ["--secret", "API_TOKEN", "--", "sleep", "600"]


def holding(host: Host) -> list[str]:
    """Files of tasks on a host that have the secret in them."""
    found = host.exec(["grep", "-rlF", SECRET, TASKS]).stdout.split()
    return sorted(path.removeprefix(f"{TASKS}/").partition("/")[2] for path in found)


def homes(host: Host) -> list[str]:
    return host.exec(["ls", TASKS]).stdout.split()


def agents(host: Host) -> list[int]:
    """Agents on a host, by their numbers here."""
    found = []
    for pid in host.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [pid] if b"agent" in words[3:5] else []
    return found


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    made = Lab(hosts, flow_home, hosts[:2])
    made.environment["API_TOKEN"] = SECRET
    return made


def start(lab: Lab) -> str:
    task = lab.submit("-N", "2", *RUN)
    lab.wait(task, "running")
    assert holding(lab.hosts[1]) == ["a1/env.json", "secrets.json"]
    return task


def leave_alone(lab: Lab, task: str) -> None:
    """Nobody leads the task any more, and nobody will."""
    os.kill(lab.supervisor(task), signal.SIGKILL)


def test_an_agent_that_hears_nobody_removes_them_when_it_ends(lab: Lab) -> None:
    task = start(lab)
    cut_off = lab.hosts[1]
    leave_alone(lab, task)
    cut_off.partition()
    eventually(lambda: holding(cut_off) == [], timeout=90, every=0.5, what="no secret to be there")
    # What the ranks wrote stays.
    assert homes(cut_off)
    cut_off.heal()
    lab.flow("cancel", task)
    lab.wait(task, "cancelled", "failed", timeout=90)


def test_what_a_killed_agent_left_goes_with_the_lease(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = start(lab)
    leave_alone(lab, task)
    host = lab.hosts[1]
    holder = [pid for pid in host.pids() if is_holder(pid)]
    for pid in agents(host):
        # A child of the agent has its command line until it runs its own program, and may have ended meanwhile.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert "secrets.json" in holding(host)
    # Its guard does what it would do two minutes later.
    os.kill(min(holder), signal.SIGKILL)
    eventually(lambda: holding(host) == [], every=0.2)
    assert homes(host)
    lab.flow("cancel", task)
    lab.wait(task, "cancelled", "failed", timeout=90)


def is_holder(pid: int) -> bool:
    try:
        return "/holder-" in os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return False


@pytest.mark.parametrize("who", ["the next task", "gc"])
def test_what_a_host_left_that_went_down_is_removed_by(lab: Lab, who: str) -> None:
    task = start(lab)
    leave_alone(lab, task)
    host = lab.hosts[1]
    host.power_cut()
    host.start()
    lab.flow("cancel", task)
    lab.wait(task, "cancelled", "failed", timeout=90)
    left = abandoned(host)
    if who == "gc":
        assert (
            f"secrets of {left} on node01: would be removed" in lab.flow("gc", "--dry-run").stdout
        )
        assert holding(host)
        assert f"secrets of {left} on node01: removed" in lab.flow("gc").stdout
        assert "nothing to do" in lab.flow("gc").stdout
    else:
        assert lab.flow("run", "-N", "2", "--", "hostname").returncode == 0
    assert holding(host) == []
    assert host.exec(["cat", f"{TASKS}/{left}/a1/r0.out"]).stdout == "written"


def abandoned(host: Host) -> str:
    """Makes what a host has on its disk when it went down in the middle of a task; gives the name of its home."""
    name = "tgone-000-node01-abcd"
    home = f"{TASKS}/{name}"
    files = {
        "secrets.json": json.dumps({"API_TOKEN": SECRET}),
        "storage.json": SECRET,
        "packages.json": SECRET,
        "a1/secret": SECRET,
        "a1/env.json": json.dumps({"environment": {"API_TOKEN": SECRET}, "reaper": {"pid": 1}}),
        "a1/r0.out": "written",
        "a1/agent.pid": json.dumps({"pid": 2**22 - 1, "start": "1", "host": host.name}),
    }
    for path, text in files.items():
        target = f"{home}/{path}"
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1"'
        done = host.exec(["sh", "-c", script, "sh", target], input=text)
        assert done.returncode == 0, done.stderr
    return name


def test_the_files_are_known_by_name(tmp_path: Path) -> None:
    kept = ["r0.out", "r0.err", "r0.result", "agent.json", "agent.pid", "report.json"]
    gone = [
        "secret",
        "rendezvous.key",
        "checkpoints.json",
        "container.env",
        "batch.json",
        "ray-token",
    ]
    gone += ["r0.failure.order", ".secret.0a1b.part", "env.json.77.part"]
    gone += [f"buckets/0/tool/{name}" for name in ("rclone.conf", ".aws/credentials")]
    for name in [
        *(f"a1/{each}" for each in (*kept, *gone)),
        "secrets.json",
        "call.bin",
        ".exec-7.env",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    noted = {"environment": {"TOKEN": "x"}, "reaper": {"pid": 5, "start": "6"}, "workdir": None}
    (tmp_path / "a1" / "env.json").write_text(json.dumps(noted))
    (tmp_path / "a1" / "buckets" / "0" / "data").mkdir()
    (tmp_path / "a1" / "buckets" / "0" / "data" / "secrets.json").write_text("of the user")
    assert secret_files.are_in(str(tmp_path))
    assert secret_files.forget(str(tmp_path))
    assert not secret_files.are_in(str(tmp_path))
    assert not secret_files.forget(str(tmp_path))
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    here = ["call.bin", "a1/env.json", "a1/buckets/0/data/secrets.json", *(f"a1/{n}" for n in kept)]
    assert left == sorted(here)
    stripped = json.loads((tmp_path / "a1" / "env.json").read_text())
    assert stripped == {**noted, "environment": {}}


@pytest.mark.parametrize("document", ["[]", '"x"', "1", "null", '{"pid": []}'])
def test_a_document_that_is_no_process_names_no_agent(document: str, tmp_path: Path) -> None:
    """The task can write to the file, and the holder of the host's lease reads it."""
    from flowlite.node.host_lease import cleanup

    attempt = tmp_path / "tasks" / "t" / "a1"
    attempt.mkdir(parents=True)
    (attempt / "agent.pid").write_text(document)
    assert not cleanup.agent_lives(str(attempt.parent))
    assert cleanup.forget_secrets(str(tmp_path), "") == []


def test_a_home_that_another_host_may_be_using_is_left_alone(tmp_path: Path) -> None:
    from flowlite.node.host_lease import cleanup

    def home(name: str, **noted: object) -> Path:
        made = tmp_path / "tasks" / name
        (made / "a1").mkdir(parents=True)
        (made / "secrets.json").write_text("x")
        (made / "a1" / "agent.pid").write_text(json.dumps(noted))
        return made

    me, dead = os.uname().nodename, {"pid": 2**22 - 1, "start": "1"}
    left = home("left", **dead, host=me)
    for name, noted in {
        "elsewhere": {**dead, "host": "another"},
        "of an older flowlite": dead,
        "now": {**dead, "host": me},
        "runs": {"pid": os.getpid(), "start": None, "host": me},
    }.items():
        home(name, **noted)
    running = tmp_path / "tasks" / "runs" / "a1" / "agent.pid"
    from flowlite.node.system import processes

    running.write_text(json.dumps({**processes.identity(os.getpid()), "host": me}))
    now = str(tmp_path / "tasks" / "now")
    assert cleanup.forget_secrets(str(tmp_path), now, dry_run=True) == [str(left)]
    assert cleanup.forget_secrets(str(tmp_path), now) == [str(left)]
    assert cleanup.forget_secrets(str(tmp_path), now) == []
    assert sys.platform != "linux" or not (left / "secrets.json").exists()
