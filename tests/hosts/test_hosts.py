"""What a test host is: a machine of its own in everything that a test may ask for."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.probes import reachable, ssh

pytestmark = pytest.mark.needs("hosts")
ROOT = Path(__file__).resolve().parent.parent.parent


def test_each_has_its_own_name_network_processes_and_host_key(hosts: Cluster) -> None:
    seen = [ssh(hosts, host, "hostname; hostname -I; cat /etc/machine-id") for host in hosts]
    assert [done.stdout.split()[:2] for done in seen] == [[h.name, h.address] for h in hosts]
    assert len({done.stdout.split()[2] for done in seen}) == len(hosts)
    assert len({line.split()[2] for line in hosts.known_hosts.read_text().splitlines()}) == len(
        hosts
    )
    for host in hosts:
        listed = host.exec(["ls", "/proc"]).stdout.split()
        assert sum(name.isdigit() for name in listed) < 10


def test_what_one_writes_no_other_sees_and_the_machine_neither(hosts: Cluster) -> None:
    script = "for d in /etc /usr/local /root /tmp /var/tmp /opt; do echo mine > $d/of-node00; done"
    assert hosts[0].exec(["sh", "-c", script]).returncode == 0
    for directory in ("/etc", "/usr/local", "/root", "/tmp", "/var/tmp", "/opt"):
        assert (hosts[0].root / directory[1:] / "of-node00").exists()
        assert not (hosts[1].root / directory[1:] / "of-node00").exists()
        assert not (Path(directory) / "of-node00").exists()


def test_they_share_one_directory(hosts: Cluster) -> None:
    hosts[0].exec(["sh", "-c", "echo hello > /mnt/shared/file"])
    assert hosts[1].exec(["cat", "/mnt/shared/file"]).stdout == "hello\n"
    assert (hosts.shared / "file").read_text() == "hello\n"


def test_the_interpreter_of_the_tests_is_there_and_the_project_cannot_be_written(
    hosts: Cluster,
) -> None:
    host = hosts[0]
    done = host.exec(["python3", "-c", "import sys, pytest; print(sys.prefix)"])
    assert done.stdout.strip() == sys.prefix
    assert host.exec(["touch", str(ROOT / "README.md")]).returncode != 0


@pytest.mark.parametrize("user", ["root", "flow"])
def test_two_users_can_log_in_and_run_python(hosts: Cluster, user: str) -> None:
    done = ssh(hosts, hosts[0], "whoami; pwd; python3 -c 'print(6 * 7)'", user=user)
    whoami, home, answer = done.stdout.split()
    assert (whoami, answer) == (user, "42")
    assert hosts[0].exec(["touch", f"{home}/file"], user=user).returncode == 0
    assert hosts[0].exec(["stat", "-c", "%U", f"{home}/file"]).stdout.strip() == user


def test_the_ordinary_user_cannot_read_what_is_roots(hosts: Cluster) -> None:
    hosts[0].exec(["sh", "-c", "umask 077; echo secret > ~/secret"])
    done = ssh(hosts, hosts[0], "cat ~root/secret; ls ~root", user="flow")
    assert "secret\n" not in done.stdout
    assert done.stderr.count("Permission denied") == 2


def test_no_name_can_be_resolved_and_nothing_outside_reached(hosts: Cluster) -> None:
    assert hosts[0].exec(["getent", "hosts", hosts[1].name]).returncode != 0
    assert hosts[0].exec(["getent", "hosts", "example.org"]).returncode != 0
    assert hosts[0].exec(["getent", "hosts", hosts[0].name]).stdout.startswith("127.0.1.1")
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "unreachable" in hosts[0].exec(["python3", "-S", "-c", code]).stderr


def test_sftp_and_fuse_are_there(hosts: Cluster) -> None:
    argv = ["sftp", "-b", "-", "-F", str(hosts.ssh_config), hosts[0].name]
    assert "authorized_keys" in hosts.laptop.exec(argv, input="ls .ssh\n").stdout
    assert hosts[0].exec(["sh", "-c", "echo -n < /dev/fuse"]).returncode == 0


def test_sshd_has_its_usual_limit_of_sessions(hosts: Cluster) -> None:
    shown = hosts[0].exec(["/usr/sbin/sshd", "-T", "-f", "/run/sshd/sshd_config"]).stdout
    assert "maxsessions 10" in shown
    assert "passwordauthentication no" in shown


def test_threads_and_children_of_one_on_the_laptop_are_there_too(hosts: Cluster) -> None:
    found: list[bool] = []
    here = socket.if_nameindex()
    with hosts.enter_laptop():
        assert {name for _, name in socket.if_nameindex()} == {"lo", "eth0"}
        thread = threading.Thread(target=lambda: found.append(len(socket.if_nameindex()) == 2))
        thread.start()
        thread.join()
    assert found == [True]
    assert socket.if_nameindex() == here
    assert hosts.laptop.exec(["hostname", "-I"]).stdout.split()[0] == hosts.laptop.address


def test_two_clusters_know_nothing_of_each_other(
    hosts: Cluster, fresh_hosts: Callable[..., Cluster]
) -> None:
    others = fresh_hosts(1)
    assert others[0].address == hosts[0].address
    assert (
        others[0].exec(["cat", "/etc/machine-id"]).stdout
        != hosts[0].exec(["cat", "/etc/machine-id"]).stdout
    )
    others[0].power_cut()
    assert reachable(hosts, hosts[0])


def test_a_host_can_have_another_python_and_other_limits(
    fresh_hosts: Callable[..., Cluster], tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "here").write_text("#!/bin/sh\necho found\n")
    (tools / "here").chmod(0o755)
    mixed = fresh_hosts(
        2, python={1: ""}, path=[str(tools)], keep=[tools], sshd={"MaxSessions": "3"}
    )
    # The machine's own interpreters, or none; in any case not the one of the tests, which is not shown.
    done = ssh(mixed, mixed[1], "python3 -c 'import sys; print(sys.prefix)'; here")
    assert sys.prefix not in done.stdout
    assert done.stdout.endswith("found\n")
    shown = mixed[0].exec(["/usr/sbin/sshd", "-T", "-f", "/run/sshd/sshd_config"]).stdout
    assert "maxsessions 3" in shown


@pytest.mark.slow
def test_sixty_four_hosts_come_up(fresh_hosts: Callable[..., Cluster]) -> None:
    many = fresh_hosts(64)
    assert len({host.address for host in many}) == 64
    assert ssh(many, many[63], "hostname").stdout == "node63\n"


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 200"):
        Cluster(0)
