"""What can be done to a host, and that it is undone afterwards."""

from __future__ import annotations

import subprocess
import time

import pytest

from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.probes import (
    connect,
    cut_off,
    cut_off_from,
    reachable,
    reachable_from,
    ssh,
)
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")


def test_kill_ends_every_process_and_refuses_at_once(hosts: Cluster) -> None:
    with hosts[0].popen(["sleep", "1000"]) as sleeper:
        hosts[0].kill()
        assert sleeper.wait(90) != 0
    assert not hosts[0].alive
    with pytest.raises(ConnectionRefusedError):
        connect(hosts, hosts[0])
    assert reachable(hosts, hosts[1])


def test_a_host_that_starts_again_has_its_disk_and_a_new_tmp(hosts: Cluster) -> None:
    host = hosts[0]
    host.exec(["sh", "-c", "echo kept > ~/file; echo kept > /opt/file; echo gone > /tmp/file"])
    host.kill()
    host.start()
    assert ssh(hosts, host, "cat ~/file /opt/file").stdout == "kept\nkept\n"
    assert ssh(hosts, host, "ls /tmp/file").stdout == ""
    host.kill()
    host.start(fresh=True)
    assert not (host.root / "root" / "file").exists()
    assert not (host.root / "opt" / "file").exists()


def test_a_power_cut_says_nothing_to_anybody(hosts: Cluster) -> None:
    with hosts.enter_laptop():
        argv = ["ssh", "-F", str(hosts.ssh_config), hosts[0].name, "echo in; sleep 1000"]
        session = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    assert session.stdout.readline() == "in\n"
    hosts[0].power_cut()
    with pytest.raises(TimeoutError):
        connect(hosts, hosts[0], timeout=0.5)
    assert session.poll() is None
    session.kill()
    session.wait()
    session.stdout.close()
    hosts[0].start()
    assert ssh(hosts, hosts[0], "hostname").stdout == f"{hosts[0].name}\n"


def test_what_a_host_without_power_is_asked_for_is_refused_with_the_reason(hosts: Cluster) -> None:
    hosts[0].power_cut()
    for ask in (hosts[0].heal, lambda: hosts[0].delay(10), hosts[0].partition):
        with pytest.raises(RuntimeError, match="node00 has no power; start it first"):
            ask()
    with pytest.raises(RuntimeError, match="does not run"):
        hosts[0].exec(["true"])


def test_pause_freezes_all_processes_and_the_kernel_goes_on(hosts: Cluster) -> None:
    host = hosts[0]
    ticking = host.popen(["sh", "-c", "while :; do date +%s%N > ~/tick; sleep 0.005; done"])
    tick = host.root / "root" / "tick"
    eventually(lambda: tick.exists() and tick.read_text(), what="the first tick")
    host.pause()
    frozen = tick.read_text()
    assert reachable(hosts, host)
    with pytest.raises(subprocess.TimeoutExpired):
        ssh(hosts, host, "true", timeout=0.5)
    assert tick.read_text() == frozen
    host.resume()
    eventually(lambda: tick.read_text() not in ("", frozen), what="the next tick")
    host.kill()
    ticking.wait(10)


def test_a_partitioned_host_reaches_nobody_and_nobody_it(hosts: Cluster) -> None:
    hosts[0].partition()
    hosts[0].partition()
    assert cut_off(hosts, hosts[0])
    assert cut_off_from(hosts[0], hosts[1])
    assert cut_off_from(hosts[1], hosts[0])
    assert reachable_from(hosts[1], hosts[2])
    hosts[0].heal()
    assert reachable(hosts, hosts[0])
    assert reachable_from(hosts[0], hosts[1])


def test_a_host_can_be_cut_off_from_some_only(hosts: Cluster) -> None:
    hosts[0].partition(hosts[1], hosts.laptop)
    assert cut_off(hosts, hosts[0])
    assert cut_off_from(hosts[0], hosts[1])
    assert cut_off_from(hosts[1], hosts[0])
    assert reachable_from(hosts[0], hosts[2])
    hosts[0].heal()
    assert reachable(hosts, hosts[0])
    assert reachable_from(hosts[1], hosts[0])


def test_a_partition_ends_no_connection(hosts: Cluster) -> None:
    with hosts.enter_laptop():
        session = subprocess.Popen(
            ["ssh", "-F", str(hosts.ssh_config), hosts[0].name, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write("before\n")
    assert session.stdout.readline() == "before\n"
    hosts.laptop.partition()
    session.stdin.write("meanwhile\n")
    assert cut_off(hosts, hosts[0])
    hosts.laptop.heal()
    assert session.stdout.readline() == "meanwhile\n"
    assert session.communicate(timeout=90)[0] == ""


def test_a_delayed_host_answers_so_much_later(hosts: Cluster) -> None:
    hosts[0].delay(60)
    assert connect(hosts, hosts[0]) >= 0.12
    assert ssh(hosts, hosts[0], "head -c 3000000 /dev/zero | md5sum").returncode == 0
    hosts[0].delay(20, loss_percent=1)
    assert connect(hosts, hosts[0]) >= 0.04
    hosts[0].delay(0)
    eventually(lambda: connect(hosts, hosts[0]) < 0.04, what="a good cable")


def test_frames_are_lost_and_nothing_that_tcp_carries(hosts: Cluster) -> None:
    hosts[0].delay(0, loss_percent=100)
    assert cut_off(hosts, hosts[0])
    hosts[0].delay(1, loss_percent=5)
    done = ssh(hosts, hosts[0], "head -c 2000000 /dev/zero | tr '\\0' x", timeout=90)
    assert done.stdout == "x" * 2_000_000


def test_a_slow_cable_can_be_cut_and_mended(hosts: Cluster) -> None:
    hosts[0].delay(30)
    hosts[0].partition()
    assert cut_off(hosts, hosts[0])
    hosts[0].delay(40)
    assert cut_off(hosts, hosts[0])
    hosts[0].heal()
    assert connect(hosts, hosts[0]) >= 0.08


@pytest.mark.parametrize("directory", ["/root", "/home/flow", "/tmp", "/opt", "/var/tmp"])
def test_a_full_disk_takes_nothing_more_wherever_it_is_written(
    hosts: Cluster, directory: str
) -> None:
    write = ["dd", "if=/dev/zero", f"of={directory}/file", "bs=64k", "count=4"]
    hosts[0].fill_disk()
    full = hosts[0].exec(write)
    assert "No space left on device" in full.stderr
    hosts[0].free_disk()
    assert hosts[0].exec(write).returncode == 0


def test_a_disk_can_be_left_with_a_little(hosts: Cluster) -> None:
    hosts[0].fill_disk(leave=1 << 20)
    code = "import os; facts = os.statvfs('/root'); print(facts.f_bavail * facts.f_frsize)"
    assert int(hosts[0].exec(["python3", "-S", "-c", code]).stdout) == 1 << 20


@pytest.mark.parametrize("seconds", [3600.0, -86400.5])
def test_a_wrong_clock_is_wrong_for_every_program_and_waits_as_long_as_a_right_one(
    hosts: Cluster, seconds: float
) -> None:
    hosts[0].skew_clock(seconds)
    code = """
import threading, time
print(time.time())
begun = time.monotonic()
time.sleep(0.05)
threading.Event().wait(0.05)
threading.Lock().acquire(timeout=0.05)
lock = threading.Condition()
with lock:
    lock.wait(0.05)
print(time.monotonic() - begun)
"""
    before = time.time()
    now, waited = map(float, hosts[0].exec(["python3", "-S", "-c", code]).stdout.split())
    assert before + seconds <= now <= time.time() + seconds
    assert waited >= 0.15
    dated = float(ssh(hosts, hosts[0], "date +%s.%N").stdout)
    assert before + seconds <= dated <= time.time() + seconds
    hosts[0].skew_clock(0)
    assert before <= float(ssh(hosts, hosts[0], "date +%s.%N").stdout) <= time.time()


def test_a_clock_moves_for_programs_that_run(hosts: Cluster) -> None:
    hosts[0].skew_clock(60)
    code = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    with hosts[0].popen(
        ["python3", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for seconds in (60, -3600, 0):
            hosts[0].skew_clock(seconds)
            before = time.time(), time.monotonic()
            program.stdin.write(b"now\n")
            wall, monotonic = map(float, program.stdout.readline().split())
            assert before[0] + seconds <= wall <= time.time() + seconds
            assert before[1] <= monotonic <= time.monotonic()
        program.kill()


def test_without_sshd_nobody_gets_in_and_who_is_in_stays(hosts: Cluster) -> None:
    with hosts.enter_laptop():
        session = subprocess.Popen(
            ["ssh", "-F", str(hosts.ssh_config), hosts[0].name, "echo in; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert session.stdout is not None
    assert session.stdout.readline() == "in\n"
    hosts[0].stop_sshd()
    with pytest.raises(ConnectionRefusedError):
        connect(hosts, hosts[0])
    assert session.poll() is None
    hosts[0].start_sshd()
    assert ssh(hosts, hosts[0], "true").returncode == 0
    hosts[0].restart_sshd(sessions=True)
    assert session.wait(90) == 255
    session.communicate()
    assert ssh(hosts, hosts[0], "true").returncode == 0


def test_logins_can_hang_though_everybody_is_let_in(hosts: Cluster) -> None:
    hosts[0].hang_logins()
    with pytest.raises(subprocess.TimeoutExpired):
        ssh(hosts, hosts[0], "true", timeout=1)
    hosts[0].restart_sshd()
    assert ssh(hosts, hosts[0], "true").returncode == 0


def test_another_host_key_is_noticed_by_a_careful_client(hosts: Cluster) -> None:
    hosts[0].change_host_key()
    done = ssh(hosts, hosts[0], "true")
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr
    hosts.reset()
    assert ssh(hosts, hosts[0], "true").returncode == 0


def test_a_silent_resolver_keeps_everybody_waiting(hosts: Cluster) -> None:
    hosts[0].silence_resolver()
    with pytest.raises(subprocess.TimeoutExpired):
        hosts[0].exec(["getent", "hosts", "example.org"], timeout=1)


def test_reset_undoes_everything(hosts: Cluster) -> None:
    hosts[0].power_cut()
    hosts[1].fill_disk()
    hosts[1].partition(hosts[2])
    hosts[2].pause()
    hosts[3].delay(500, 50)
    hosts.laptop.partition()
    hosts.shared.joinpath("file").write_text("x")
    with hosts.enter_laptop():
        left = subprocess.Popen(["sleep", "1000"])
    hosts.reset()
    assert left.wait(90) == -9
    assert not list(hosts.shared.iterdir())
    for host in hosts:
        assert ssh(hosts, host, "echo x > file && cat file").stdout == "x\n"
    assert reachable_from(hosts[1], hosts[2])
    eventually(lambda: connect(hosts, hosts[3]) < 1, what="a good cable")
