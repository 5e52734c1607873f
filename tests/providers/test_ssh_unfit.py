"""Hosts that tasks found broken, or lost twice in a row: who avoids them, and until when."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.provider import Instance
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.state import clock
from provider_adapters.ssh import unfit_hosts
from provider_adapters.ssh.provider import SshProvider
from provider_adapters.ssh.unfit_hosts import AVOIDED_SECONDS, UnfitHosts
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

GPUS = 2
SMI = """#!/bin/sh
if [ -e /tmp/lost ]; then
    echo "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system"
    exit 15
fi
for i in 0 1; do
    case "$*" in
        *uuid*) echo "$i, GPU-$i, NVIDIA H100 80GB HBM3, 81559" ;;
        *ecc*) echo "$i, 00000000:0$i:00.0, 0" ;;
        *) echo "$i, NVIDIA H100 80GB HBM3, 0, 0, 81559" ;;
    esac
done
"""
INSTALL = """
cat > /usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi
printf '#!/bin/sh\\ncat /tmp/kernel.log 2>/dev/null\\n' > /usr/local/bin/dmesg; chmod 755 /usr/local/bin/dmesg
for i in 0 1 9; do
    mkdir -p /tmp/driver/nvidia/gpus/0000:0$i:00.0
    printf 'Device Minor: \\t %s\\n' $i > /tmp/driver/nvidia/gpus/0000:0$i:00.0/information
done
# The last one is not for this host, as in a container that has some of a machine's GPUs.
touch /dev/nvidia0 /dev/nvidia1
mount --bind /tmp/driver /proc/driver
"""
# On the node that is told so, the kernel reports a broken GPU, and the worker fails.
FAILS_ONCE = """
if [ -e /tmp/breaks ]; then
    rm /tmp/breaks
    echo "[1.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus." > /tmp/kernel.log
    exit 1
fi
echo ran on $(hostname)
"""


def an_instance(name: str, task: str = "t1", sick: str = "") -> Instance:
    return Instance(name, task, sick=sick, data={"key": "k", "host": "gpu1"})


class TestNotes:
    def test_a_broken_host_is_avoided_at_once(self, tmp_path: Path) -> None:
        unfit = UnfitHosts(tmp_path)
        unfit.note([an_instance("i1", sick="GPU 3 is lost")])
        assert "gpu1 is not used until" in unfit.why("k", "t2")
        assert "t1 found: GPU 3 is lost" in UnfitHosts(tmp_path).why("k")
        unfit.well([an_instance("i2")])
        assert unfit.why("k")
        unfit.lift("k")
        assert unfit.why("k") == ""

    def test_a_host_is_avoided_when_it_is_lost_twice_in_a_row(self, tmp_path: Path) -> None:
        unfit = UnfitHosts(tmp_path)
        unfit.note([an_instance("i1")])
        unfit.note([an_instance("i1")])  # as after a crash
        assert unfit.why("k") == ""
        unfit.well([an_instance("i2")])
        unfit.note([an_instance("i3")])
        assert unfit.why("k") == ""
        unfit.note([an_instance("i4")])
        assert "lost 2 times in a row" in unfit.why("k")

    def test_it_ends_after_a_while_except_for_the_task_that_found_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unfit = UnfitHosts(tmp_path)
        unfit.note([an_instance("i1", sick="GPU 3 is lost")])
        later = clock.now() + AVOIDED_SECONDS + 1
        monkeypatch.setattr(clock, "now", lambda: later)
        assert unfit.why("k", "t2") == ""
        assert unfit.why("k", "t1")

    def test_a_note_of_a_clock_that_was_wrong_counts_no_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unfit = UnfitHosts(tmp_path)
        later = clock.now() + 365 * 86400
        with monkeypatch.context() as wrong:
            wrong.setattr(clock, "now", lambda: later)
            unfit.note([an_instance("i1", sick="GPU 3 is lost")])
        assert unfit.why("k", "t2") == ""

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "[1]",
            "[" * 100_000,
            "\x00\xff",
            '{"k": 5}',
            '{"k": {}}',
            '{"k": {"host": "h", "why": 3, "task": "t", "instance": "i", "losses": 1, "at": 1}}',
            '{"k": {"host": "h", "why": "w", "task": "t", "instance": "i", "losses": 1, "at": "x"}}',
        ],
        ids=range(8),
    )
    def test_a_damaged_file_keeps_no_host_from_being_used(
        self, content: str, tmp_path: Path
    ) -> None:
        (tmp_path / "unfit.json").write_text(content)
        unfit = UnfitHosts(tmp_path)
        assert unfit.why("k") == ""
        unfit.well([an_instance("i2")])
        unfit.note([an_instance("i3", sick="GPU 3 is lost")])
        assert "GPU 3 is lost" in unfit.why("k")

    def test_hosts_are_released_also_if_nothing_can_be_noted_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(unfit_hosts, "write_atomically", full)
        provider = SshProvider(tmp_path, ProviderSettings("ssh"))
        provider.avoid([an_instance("i1", sick="GPU 3 is lost")])


def install(host: Host) -> None:
    done = host.exec(["sh", "-ec", INSTALL], input=SMI)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def lab(fresh_hosts: type[Cluster], flow_home: Path) -> Lab:
    cluster = fresh_hosts(3)
    for host in cluster:
        install(host)
    return Lab(cluster, flow_home)


def test_a_gpu_that_breaks_takes_its_host_out_until_it_is_mended(lab: Lab) -> None:
    first, second, third = lab.hosts
    gpus = ("--gpu", f"h100:{GPUS}", "--processes-per-node", "1")
    # Before GO: the host is replaced, and no retry is used up.
    first.exec(["touch", "/tmp/lost.soon"])
    lab.flow("run", *gpus, "--", "true")  # the facts of the hosts are known now
    first.exec(["mv", "/tmp/lost.soon", "/tmp/lost"])
    done = lab.flow("run", *gpus, "--name", "before", "--", "hostname")
    assert "node01" in done.stdout
    told = [event["text"] for event in lab.task("before")["events"]]
    assert any("node 0 (" in text and "GPU is lost" in text for text in told), told
    assert lab.held() == {"node00": "avoided"}
    # While ranks run: the attempt fails, and the next one is on another host.
    second.exec(["touch", "/tmp/breaks"])
    command = ("sh", "-c", FAILS_ONCE)
    done = lab.flow("run", *gpus, "--retries", "1", "--name", "while", "--", *command)
    assert "ran on node02" in done.stdout
    assert any("XID 79 of GPU 1" in event["text"] for event in lab.task("while")["events"])
    assert lab.held() == {"node00": "avoided", "node01": "avoided"}
    refused = lab.flow("run", *gpus, "-N", "2", "--", "true", code=None)
    assert refused.returncode != 0
    assert "XID 79 of GPU 1" in refused.stderr
    # What is mended is used again.
    first.exec(["rm", "/tmp/lost"])
    checked = lab.flow("hosts", "check", code=None)
    assert "It is well now, and used again" in checked.stdout
    eventually(lambda: lab.held() == {})
    assert third.alive
