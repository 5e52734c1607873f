"""Workers in containers: the command lines, and real ones with podman."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.containers import engines
from flowlite.node.containers.engines import ContainerSettings, Engine, EngineError
from flowlite.node.forkserver import client
from flowlite.node.setup.done import Record
from flowlite.node.system import processes
from tests.helpers import assert_no_process_left, eventually
from tests.node.agents import RealGang
from tests.podman import BARE, IMAGE, Podman

DOCKER = Engine("/usr/bin/docker", "docker")
PODMAN = Engine("/usr/bin/podman", "podman")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OUTLINE = ContainerSettings(
    name="flowlite-t1-n0-a1",
    image="team/train:2",
    user=(1000, 1000, (1000, 44)),
    binds=(
        ("/home/me/.flowlite-node/tasks/t1", "/home/me/.flowlite-node/tasks/t1", False),
        ("/nfs/x", "/x", True),
    ),
    gpus=True,
    devices=("/dev/infiniband",),
)


class TestTheCommandLine:
    def test_of_docker(self) -> None:
        words = engines.run_command(DOCKER, OUTLINE, ["-c", "script", "sh"])
        assert words == [
            *("/usr/bin/docker", "run", "--rm", "--pull", "never", "--name", "flowlite-t1-n0-a1"),
            *("--network", "host", "--ipc", "host", "--pid", "host"),
            *("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
            *("--cap-add", "SYS_PTRACE", "--security-opt", "label=disable"),
            *("--user", "1000:1000", "--group-add", "44"),
            *("--gpus", "all", "--device", "/dev/infiniband"),
            "--mount",
            "type=bind,source=/home/me/.flowlite-node/tasks/t1,target=/home/me/.flowlite-node/tasks/t1",
            *("--mount", "type=bind,source=/nfs/x,target=/x,readonly"),
            *("--workdir", "/", "--entrypoint", "/bin/sh", "team/train:2", "-c", "script", "sh"),
        ]

    def test_of_podman_differs_in_how_gpus_and_users_are_named(self) -> None:
        words = engines.run_command(PODMAN._replace(rootless=True), OUTLINE, [])
        text = " ".join(words)
        assert "--device nvidia.com/gpu=all" in text
        assert "--gpus" not in words
        assert "--userns keep-id --user 1000:1000 --group-add keep-groups" in text

    def test_a_rootless_docker_has_the_user_as_root(self) -> None:
        words = engines.run_command(DOCKER._replace(rootless=True), OUTLINE, [])
        assert "--user" not in words

    def test_without_gpus_asked_for_there_are_none(self) -> None:
        plain = ContainerSettings(name="n", image="i", user=(0, 0, (0,)), limits=False)
        words = engines.run_command(PODMAN, plain, [])
        assert not {"--gpus", "--device", "--ulimit", "--group-add"} & set(words)

    def test_a_path_that_cannot_be_said_is_refused(self) -> None:
        odd = ContainerSettings(
            name="n", image="i", user=(0, 0, ()), binds=(("/a,b", "/a", False),)
        )
        with pytest.raises(EngineError, match="comma"):
            engines.run_command(DOCKER, odd, [])

    def test_exec(self) -> None:
        assert engines.exec_command(PODMAN, "n", ["sh"], terminal=True)[1:] == [
            "exec",
            "-it",
            "n",
            "sh",
        ]


class TestWhichEngine:
    @staticmethod
    def program(directory: Path, name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)

    def find(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
        monkeypatch.setenv("PATH", str(directory))
        return asyncio.run(engines.find())

    def test_docker_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program(tmp_path, "docker", "echo '[name=seccomp name=rootless]'")
        self.program(tmp_path, "podman", "echo rootless=false")
        assert self.find(tmp_path, monkeypatch) == Engine(f"{tmp_path}/docker", "docker", True)

    def test_podman_when_docker_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.program(tmp_path, "docker", "echo no daemon >&2; exit 1")
        self.program(tmp_path, "podman", "echo rootless=true")
        assert self.find(tmp_path, monkeypatch) == Engine(f"{tmp_path}/podman", "podman", True)

    def test_podman_by_the_name_of_docker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.program(
            tmp_path,
            "docker",
            "case $1 in --version) echo podman version 5;; *) echo rootless=false;; esac",
        )
        assert self.find(tmp_path, monkeypatch).kind == "podman"

    def test_neither_is_refused_with_what_they_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.program(tmp_path, "docker", "echo permission denied on the socket >&2; exit 1")
        with pytest.raises(EngineError) as caught:
            self.find(tmp_path, monkeypatch)
        assert "docker: permission denied on the socket" in str(caught.value)
        assert "podman is not installed" in str(caught.value)

    def test_one_that_hangs_is_given_up(self, tmp_path: Path) -> None:
        self.program(tmp_path, "docker", "exec /bin/sleep 60")
        said = asyncio.run(engines.ask([f"{tmp_path}/docker"], seconds=0.2))
        assert said.code != 0
        assert "no answer" in said.words


# Real ones


def gang_of(tmp_path: Path, *argv: str, image: str = IMAGE, **options: Any) -> RealGang:
    call = {"kind": "command", "argv": list(argv)}
    given = {"container": {"image": image}, "nodes": 1, "linger": 1.0, **options}
    return RealGang(tmp_path / "g", call, **given)


SHOW = (
    "echo $RANK; id -u; cat /proc/1/comm; ls /; readlink /proc/self/ns/mnt; "
    'echo PATH=$PATH; echo "$SECRETLIKE"'
)


@pytest.mark.usefixtures("podman")
class TestRealContainers:
    def test_workers_are_inside_and_all_else_is_as_on_the_node(self, tmp_path: Path) -> None:
        environment = {"SECRETLIKE": 'it\'s a "value"\nof two lines $HOME', "A.B": "no shell name"}
        with gang_of(tmp_path, "sh", "-c", SHOW, nodes=2, environment=environment) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", f"{ended}\n{gang.logs()}"
            for rank in range(4):
                text = gang.text(rank)
                assert text.startswith(f"{rank}\n{os.getuid()}\n")
                assert Path("/proc/1/comm").read_text().strip() in text, "not the node's processes"
                assert "root" in text
                assert "home" not in text.split(), "the node's own files are to be seen"
                assert os.readlink("/proc/self/ns/mnt") not in text
                assert environment["SECRETLIKE"] in text
                assert f"PATH={os.environ['PATH']}" not in text, "the image's own PATH is lost"
            gang.assert_nothing_left(timeout=90)

    def test_no_value_is_on_a_command_line(self, tmp_path: Path) -> None:
        environment = {"SECRETLIKE": "hunter2hunter2"}
        with gang_of(tmp_path, "sleep", "60", environment=environment) as gang:
            gang.start()
            gang.tell_leader()
            eventually(gang.paths[0].stream(0, "out").exists)
            lines = [
                path.read_bytes()
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if _readable(path)
            ]
            assert any(gang.task.encode() in line for line in lines)
            assert not any(b"hunter2hunter2" in line for line in lines)
            (variables,) = gang.paths[0].directory.glob("container.env")
            assert stat.S_IMODE(variables.stat().st_mode) == 0o600

    def test_volumes_are_shown_at_their_paths(self, tmp_path: Path) -> None:
        source = tmp_path / "volume"
        source.mkdir()
        volume = {"name": "v", "path": "/some/where", "source": str(source), "interface": "file"}
        script = "echo written > /some/where/file; pwd"
        with gang_of(
            tmp_path, "sh", "-c", script, nodes=2, volumes=[volume], workdir=str(tmp_path)
        ) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", f"{ended}\n{gang.logs()}"
            assert (source / "file").read_text() == "written\n"
            assert gang.text(0) == f"{tmp_path}\n"

    def test_setup_runs_inside_once_for_each_node_and_its_effects_are_there(
        self, tmp_path: Path
    ) -> None:
        """What is installed lies in the container, so that its own files are changed and not the node's."""
        mark = f"/tmp/flowlite-setup-{os.getpid()}"
        script = f"cat {mark}"
        setup = [f"echo node $FLOW_NODE_RANK >> {mark}", "echo set up"]
        with gang_of(tmp_path, "sh", "-c", script, nodes=2, setup=setup) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", f"{ended}\n{gang.logs()}"
            assert [gang.text(rank) for rank in range(4)] == ["node 0\n"] * 2 + ["node 1\n"] * 2
            assert gang.text(0, "setup").endswith("$ echo set up\nset up\n")
            gang.assert_nothing_left(timeout=90)
        assert not Path(mark).exists()

    def test_setup_inside_does_not_count_for_a_task_on_the_node_itself(
        self, tmp_path: Path
    ) -> None:
        mark = f"/tmp/flowlite-setup-{os.getpid()}-warm"
        kept: dict[str, Any] = {"warm_seconds": 60.0, "cache": str(tmp_path / "cache" / "blobs")}
        setup = [f"echo x >> {mark}"]
        with gang_of(tmp_path, "sh", "-c", f"cat {mark}", setup=setup, **kept) as gang:
            assert gang.run()["outcome"] == "done", gang.logs()
        (config,) = gang.configs
        config.container = None
        later = AttemptPaths(tmp_path / "later" / "a1")
        assert Record(config, later).find() is None

    def test_exit_codes_and_signals_are_those_of_the_worker(self, tmp_path: Path) -> None:
        with gang_of(tmp_path, "sh", "-c", "exit $((40 + RANK))", processes_per_node=1) as gang:
            gang.run()
            assert gang.workers()[0]["code"] == 40
        with gang_of(tmp_path / "2", "sh", "-c", "kill -9 $$", processes_per_node=1) as gang:
            gang.run()
            assert gang.workers()[0]["failure"]["type"] == "SIGKILL"

    def test_workers_are_asked_to_stop_before_they_are_killed(self, tmp_path: Path) -> None:
        script = "trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.05; done"
        with gang_of(tmp_path, "sh", "-c", script, processes_per_node=1) as gang:
            agent = gang.start_agent(0)
            out = gang.paths[0].stream(0, "out")
            gang.tell_leader()
            eventually(lambda: out.exists() and out.read_text() == "up\n")
            agent.terminate()
            agent.wait(90)
            assert out.read_text() == "up\nasked\n"
            gang.assert_nothing_left(timeout=90)

    @pytest.mark.parametrize("victim", ["agent", "fork_server", "reaper"])
    def test_nothing_is_left_whoever_is_killed(
        self, tmp_path: Path, podman: Podman, victim: str
    ) -> None:
        script = "trap '' TERM; echo $$ > $HOME_OF/pid; sleep 600 & sleep 600"
        environment = {"HOME_OF": str(tmp_path / "g" / "i-000")}
        with gang_of(
            tmp_path, "sh", "-c", script, processes_per_node=1, environment=environment
        ) as gang:
            agent = gang.start_agent(0)
            gang.tell_leader()
            noted = gang.paths[0].home / "pid"
            eventually(lambda: noted.exists() and noted.read_text())
            assert len(podman.containers()) == 1
            reaper = json.loads(gang.paths[0].environment.read_bytes())["reaper"]["pid"]
            row = processes.row(reaper)
            assert row is not None
            os.kill({"agent": agent.pid, "fork_server": row.parent, "reaper": reaper}[victim], 9)
            podman.until_empty()
            agent.wait(90)
            assert_no_process_left(gang.task)

    def test_threads_are_not_limited(self, podman: Podman) -> None:
        plain = ContainerSettings(name="threads", image=IMAGE, user=(0, 0, ()), limits=False)
        made = podman.run("create", *engines.run_command(PODMAN, plain, ["-c", "exit"])[3:])
        assert made.returncode == 0, made.stderr
        limit = podman.run("inspect", "--format", "{{.HostConfig.PidsLimit}}", "threads").stdout
        podman.run("rm", "threads")
        assert int(limit) <= 0

    def test_a_command_beside_the_workers(self, tmp_path: Path) -> None:
        with gang_of(tmp_path, "sh", "-c", "echo up; exec sleep 600", processes_per_node=1) as gang:
            gang.start()
            gang.tell_leader()
            out = gang.paths[0].stream(0, "out")
            eventually(lambda: out.exists() and out.read_text() == "up\n")
            home = str(gang.paths[0].home)
            words = processes.own_command(
                sys.executable, "exec", home, "--", "sh", "-c", "ls /home; echo $RANK; exit 5"
            )
            done = subprocess.run(words, capture_output=True, text=True, timeout=90)
            assert done.returncode == 5, done.stderr
            assert done.stdout == "0\n"
            gang.agents[0].send_signal(signal.SIGTERM)
            gang.agents[0].wait(90)

    def test_what_a_killed_attempt_left_is_in_nobodys_way(self, tmp_path: Path) -> None:
        with gang_of(tmp_path, "sh", "-c", ":", processes_per_node=1) as gang:
            dead = client.socket_path(str(gang.paths[0].home))
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(dead)
            ended = gang.run()
            assert ended["outcome"] == "done", f"{ended}\n{gang.logs()}"

    def test_an_image_that_nobody_has(self, tmp_path: Path) -> None:
        with gang_of(tmp_path, "true", image="localhost:1/no/such:image") as gang:
            ended = gang.run()
            assert ended["outcome"] != "done"
            assert "localhost:1/no/such:image is not on this node" in ended["reason"]
            assert "podman cannot pull it" in ended["reason"]

    def test_an_image_without_python(self, tmp_path: Path) -> None:
        with gang_of(tmp_path, "true", image=BARE) as gang:
            ended = gang.run()
            assert f"{BARE} has no Python 3.11 or newer (none found)" in ended["reason"]

    def test_an_image_with_another_python(self, tmp_path: Path) -> None:
        spec = {"python": "3.99", "requirements": None}
        with gang_of(tmp_path, "true", python_spec=spec) as gang:
            ended = gang.run()
            assert f"{IMAGE} has no Python 3.99 ({HERE})" in ended["reason"]

    def test_packages_beyond_the_image_need_uv(self, tmp_path: Path) -> None:
        spec = {"python": HERE, "requirements": "x\n", "directory": str(tmp_path / "envs")}
        with gang_of(tmp_path, "true", python_spec=spec) as gang:
            reason = gang.run()["reason"]
            assert f"in the image {IMAGE}: an environment cannot be made" in reason
            assert "without uv" in reason


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
