"""`flow dev`: a node to work on, reached by the real `ssh` through the entry that was made, and by a forwarded port.

In the place of Jupyter, which is no dependency of the tests, stands a web server that is started as Jupyter is: as a
module of that name, with the same options and the token in the same variable.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.api.client import Flow
from flowlite.api.node_access import NodeAccess
from flowlite.cli import main
from flowlite.cli.commands.dev import listener, ssh_entry
from flowlite.connect.local import LocalConnection
from flowlite.testing.hosts import Cluster
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox

JUPYTER = """
import http.server, os, sys
port = int(next(each for each in sys.argv if each.startswith("--ServerApp.port=")).partition("=")[2])
class Say(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        right = self.path == "/?token=" + os.environ["JUPYTER_TOKEN"]
        self.send_response(200 if right else 403)
        self.end_headers()
        self.wfile.write(b"jupyter in " + os.getcwd().encode())
http.server.ThreadingHTTPServer(("127.0.0.1", port), Say).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ssh_through_the_entry_and_jupyter_through_a_forwarded_port(
    hosts: Cluster, flow_home: Path, tmp_path: Path
) -> None:
    lab = Lab(hosts, flow_home, list(hosts)[:1])
    project = tmp_path / "project"
    (project / "jupyter_server").mkdir(parents=True)
    (project / "jupyter_server" / "__init__.py").write_text("")
    (project / "jupyter_server" / "__main__.py").write_text(JUPYTER)
    # An older entry of a task that nobody knows.
    (flow_home / "dev" / "old").mkdir(parents=True)
    (flow_home / "dev" / "old" / "task").write_text("t0000000")
    words = ("dev", "--jupyter", "--name", "notes")
    shown = json.loads(lab.flow(*words, "--json", cwd=project).stdout)["data"]
    again = json.loads(lab.flow(*words, "--json", cwd=project).stdout)["data"]
    assert again == shown, "the node that runs is found again"
    assert shown["host"] == "flow-notes"
    assert not (flow_home / "dev" / "old").exists()

    # The user's own configuration has nothing but the line.
    config = tmp_path / "ssh_config"
    config.write_text(f"Include {flow_home}/dev/*/config\n")
    script = f"hostname; cd {shown['directory']} && ls"
    with lab.cluster.enter_laptop():
        done = subprocess.run(
            ["ssh", "-F", str(config), shown["host"], script],
            env=lab.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert done.stdout.split() == [lab.hosts[0].name, "jupyter_server"], done.stderr
    assert (
        not (Path.home() / ".ssh" / "config").exists()
        or "dev/*/config" not in (Path.home() / ".ssh" / "config").read_text()
    )

    with lab.cluster.enter_laptop():
        process = subprocess.Popen(
            [sys.executable, "-m", "flowlite.cli", *words],
            env={**lab.environment, "PYTHONUNBUFFERED": "1"},
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None
    try:
        lines = []
        while not lines or "Jupyter" not in lines[-1]:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            lines.append(line)
        said = "".join(lines)
        assert f"code --remote ssh-remote+flow-notes {shown['directory']}" in said
        assert "flow cancel notes" in said
        url = lines[-1].split()[-1]

        def answer() -> str:
            with lab.cluster.enter_laptop(), urllib.request.urlopen(url, timeout=90) as reply:
                return str(reply.read().decode())

        assert eventually(answer) == f"jupyter in {shown['directory']}"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
        assert (process.returncode, "Traceback" in err) == (130, False), err
        assert f"at the top of {Path.home()}/.ssh/config:\n  Include " in err
    finally:
        process.kill()
        process.communicate()
    # Ctrl-C has ended the forwarding only.
    assert lab.task("notes")["status"] == "running"
    lab.flow("cancel", "-w", "notes")
    assert lab.held() == {}


@pytest.mark.usefixtures("flow_home")
def test_on_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.chdir(tmp_path)
    assert main(["dev", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["data"]
    assert (shown["host"], shown["directory"]) == (None, str(tmp_path))
    assert main(["dev"]) == 0
    assert "the node is this machine" in capsys.readouterr().out
    assert main(["cancel", "-w", "dev"]) == 0
    # Another task of that name, and a node without a Jupyter.
    assert main(["run", "-d", "--name", "dev", "--", "sleep", "600"]) == 0
    assert main(["dev"]) == 2
    assert "is none of `flow dev`; choose another --name" in capsys.readouterr().err
    assert main(["cancel", "-w", "dev"]) == 0


@pytest.mark.usefixtures("flow_home")
@pytest.mark.usefixtures("flow_home")
def test_two_commands_at_once_share_a_node(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flowlite.cli", "dev", "--name", "shared", "--json"]
    both = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [each.communicate(timeout=90) for each in both]
    tasks = Flow().list_tasks(unfinished=True)
    assert main(["cancel", "-w", *(each.id for each in tasks)]) == 0
    assert len(tasks) == 1, said
    assert {json.loads(out)["data"]["task"] for out, _ in said} == {tasks[0].id}


def test_a_node_that_is_being_cancelled_is_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    os.chdir(tmp_path)
    assert main(["dev", "--json"]) == 0
    first = Flow().get_task("dev")
    assert main(["cancel", "dev"]) == 0
    assert main(["dev", "--json"]) == 0
    again = Flow().get_task("dev")
    assert (first.status, again.status, first.id == again.id) == ("cancelled", "running", False)
    assert main(["cancel", "-w", again.id]) == 0


@pytest.mark.timeout(300)
def test_a_rented_node_needs_a_cap_and_shows_its_volume(
    box: CloudInABox, flow_home: Path, tmp_path: Path
) -> None:
    from tests.providers.laptop import Laptop

    laptop = Laptop(box, flow_home, 'provider = "aws"\nsync = false\n[aws]\nregion = "us-east-1"\n')
    volume = "/data=ckpt,size_gb=10"
    refused = laptop.flow("dev", "--volume", volume, code=4)
    assert "has no cap; add --max-run-time-hours 8 or --max-cost 20" in refused
    assert box.aws.instances() == []
    laptop.flow("dev", "--volume", volume, "--max-run-time-hours", "1", "--json")
    # Files of a volume that only machines of the region can mount, on the node.
    (tmp_path / "a.txt").write_text("from here")
    laptop.flow("volumes", "put", str(tmp_path / "a.txt"), "ckpt:new/")
    assert "from here" in laptop.flow("ssh", "dev", "--command", "cat /data/new/a.txt")
    laptop.flow("ssh", "dev", "--command", "echo from there > /data/b.txt")
    laptop.flow("volumes", "get", "ckpt:b.txt", str(tmp_path))
    assert (tmp_path / "b.txt").read_text() == "from there\n"
    laptop.flow("cancel", "-w", "dev")
    refused = laptop.flow("volumes", "ls", "ckpt", code=2)
    assert "start one with `flow dev --provider aws --volume /data=ckpt`" in refused
    assert {each["state"] for each in box.aws.instances()} == {"terminated"}


def test_the_line_is_added_above_everything(tmp_path: Path) -> None:
    real, config = tmp_path / "dotfiles" / "ssh", tmp_path / ".ssh" / "config"
    real.parent.mkdir()
    config.parent.mkdir()
    real.write_text("Host a\n  User b\n")
    real.chmod(0o640)
    config.symlink_to(real)
    line = ssh_entry.include_line(tmp_path / "home")
    assert not ssh_entry.is_included(config, line)
    ssh_entry.include(config, line)
    assert real.read_text() == f"{line}\n\nHost a\n  User b\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert config.is_symlink()
    assert ssh_entry.is_included(config, line)
    ssh_entry.include(tmp_path / "new" / "config", line)
    assert (tmp_path / "new" / "config").stat().st_mode & 0o777 == 0o600


def test_the_line_names_the_home_directory_as_it_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert ssh_entry.include_line(Path("/home/me/.flowlite")) == "Include ~/.flowlite/dev/*/config"
    assert ssh_entry.include_line(Path("/a b")) == 'Include "/a b/dev/*/config"'


_OTHER = """
import os, socket, sys
os.setuid(int(sys.argv[3]))
kept = socket.create_server((sys.argv[1], 0), family=int(sys.argv[2]))
print(kept.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_that_another_user_has_gets_no_token(address: str) -> None:
    """As on a host of several users, where one of them listens on Jupyter's port first."""
    node = NodeAccess(LocalConnection(), False, ())
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, 0), family=family).close()
    except OSError as error:
        pytest.skip(f"no socket at {address}: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER, address, str(int(family)), "65534"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert listener.other_user(node, port) == 65534
        other.stdin.close()
    with socket.create_server((address, 0), family=family) as own:
        assert listener.other_user(node, own.getsockname()[1]) is None


@pytest.mark.usefixtures("flow_home")
def test_the_token_is_not_shown_where_another_user_listens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jupyter_server").mkdir()
    (tmp_path / "jupyter_server" / "__init__.py").write_text("")
    (tmp_path / "jupyter_server" / "__main__.py").write_text(JUPYTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(listener, "other_user", lambda there, port: 4001)
    try:
        assert main(["dev", "--jupyter"]) != 0
        shown = capsys.readouterr()
        assert "held by uid 4001" in shown.err
        assert "token=" not in shown.out + shown.err
    finally:
        main(["cancel", "-w", "dev"])


@pytest.mark.usefixtures("flow_home")
def test_options_of_a_node_that_runs_already(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    os.chdir(tmp_path)
    assert main(["dev", "--env", "A=b"]) == 0
    capsys.readouterr()
    assert main(["dev", "--env", "A=b"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["dev", "--env", "A=c", "-N", "2"]) == 0
    err = capsys.readouterr().err
    assert "environment, num_instances: no effect on task dev" in err
    assert "`flow cancel dev` ends it" in err
    assert main(["dev", "--jupyter"]) == 2
    assert "was started without Jupyter" in capsys.readouterr().err
    assert main(["cancel", "-w", "dev"]) == 0


@pytest.mark.usefixtures("flow_home")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_node_without_jupyter(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: list[str]
) -> None:
    """Jupyter is no dependency of the tests."""
    os.chdir(tmp_path)
    for _ in range(3):
        assert main(["dev", "--jupyter", *form]) == 1
        assert "exited with 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_only_the_processes_of_the_task_have(
    hosts: Cluster, flow_home: Path, tmp_path: Path
) -> None:
    lab = Lab(hosts, flow_home, list(hosts)[:1])
    done = lab.flow("dev", "--volume", "/data=ckpt", "--env", "FOO=bar", cwd=tmp_path)
    note, inside = done.stderr.split("note: ")[-1].splitlines()[:2]
    assert "/data, its variables: in `flow ssh dev`, not in ssh and VS Code" in note
    config = tmp_path / "ssh_config"
    config.write_text(f"Include {flow_home}/dev/*/config\n")

    def by_ssh(line: str) -> str:
        with lab.cluster.enter_laptop():
            return subprocess.run(
                ["ssh", "-F", str(config), "flow-dev", line],
                env=lab.environment,
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
                stdin=subprocess.DEVNULL,
            ).stdout

    assert by_ssh(f"{inside.strip()} -c 'touch /data/saved; ls /data; echo $FOO'") == "saved\nbar\n"
    # An empty directory is at the path.
    assert by_ssh("ls -A /data; echo $FOO") == "\n"
    lab.flow("cancel", "-w", "dev")
