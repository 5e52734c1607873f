"""What a node says of itself: counters, GPUs; and what `flow top` makes of two of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowlite.cli.commands.top import between, rates
from flowlite.node.inspect import metrics, netbench
from flowlite.node.protocol.framing import WireError

GPUS = "0, NVIDIA H100 80GB HBM3, 97, 71234, 81559\n1, NVIDIA H100 80GB HBM3, [N/A], [N/A], 81559\n"


def test_gpus_are_read_and_what_is_not_said_is_none() -> None:
    first, second = metrics.parse_gpus(GPUS)

    assert (first["utilisation"], first["memory_used"]) == (97, 71234 * 2**20)
    assert (second["utilisation"], second["memory_used"]) == (None, None)
    assert [gpu["index"] for gpu in metrics.parse_gpus(GPUS, "1")] == [1]
    assert metrics.parse_gpus("No devices were found\n") == []


def test_the_processes_of_a_worker_are_added_up(tmp_path: Path) -> None:
    # Both use processor time by the counter that is read here, which advances in steps of the kernel's clock.
    compute = "import os\nwhile sum(os.times()[:2]) < 0.1: pass\n"
    child = f"{compute}print(1, flush=True)\ninput()"
    code = f"{compute}import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        note = {"rank": 1, "signal": None, **metrics.processes.identity(worker.pid)}
        (tmp_path / "r1.pid").write_text(json.dumps(note))
        (found,) = metrics.workers_of(str(tmp_path))
    finally:
        worker.communicate(b"\n")

    assert found["rank"] == 1
    assert found["cpu_seconds"] >= 0.2
    assert found["rss"] > 8_000_000


SAMPLE = {
    "monotonic": 100.0,
    "cores": 4,
    "cpu": {"busy": 10.0, "total": 100.0},
    "memory": {"used": 1, "total": 2},
    "network": {"received": 1000, "sent": 0},
    "gpus": [],
    "workers": [{"rank": 0, "pid": 7, "cpu_seconds": 5.0, "rss": 10}],
    "ranks": [0],
}


def test_rates_come_from_two_samples() -> None:
    later = {
        **SAMPLE,
        "monotonic": 102.0,
        "cpu": {"busy": 14.0, "total": 108.0},
        "network": {"received": 5000, "sent": 20},
        "workers": [
            {"rank": 0, "pid": 7, "cpu_seconds": 8.0, "rss": 30},
            {"rank": 1, "pid": 9, "cpu_seconds": 50.0, "rss": 5},
        ],
        "ranks": [0, 1],
    }
    found = between(SAMPLE, later)

    # A process that was not there before has no rate yet.
    assert found["cpu_percent"] == 150.0
    assert found["machine_cpu_percent"] == 50.0
    assert (found["received_per_second"], found["sent_per_second"]) == (2000.0, 10.0)
    assert (found["memory"], found["ranks"]) == (35, [0, 1])


def test_a_gang_may_grow_and_its_machines_be_replaced_between_two_samples() -> None:
    replaced = {**SAMPLE, "monotonic": 3.0, "network": {"received": 7, "sent": 7}}
    later = {**SAMPLE, "monotonic": 102.0}
    found = rates([SAMPLE, SAMPLE], [later, replaced, later])
    assert [each["node"] for each in found] == [0, 1, 2]
    # Machines that were not seen before have no rate yet.
    assert [each["sent_per_second"] for each in found] == [0, 0, 0]
    assert [each["node"] for each in rates([SAMPLE, SAMPLE], [later])] == [0]


def test_a_node_that_does_not_answer_says_so() -> None:
    assert between(SAMPLE, {"error": "no route"}) == {"error": "no route"}


class TestLinks:
    token = bytes(range(32))

    def serve(self, token: bytes, seconds: float = 20.0) -> int:
        """Starts a server as `flow doctor` does; gives its port. It ends by itself."""
        root = str(Path(__file__).parent.parent.parent)
        done = subprocess.run(
            [sys.executable, "-m", "flowlite.node", "links", "serve", "127.0.0.1", str(seconds)],
            input=token,
            capture_output=True,
            cwd=root,
            timeout=90,
            check=True,
        )
        return int(json.loads(done.stdout)["port"])

    def test_a_way_is_measured(self) -> None:
        found = netbench.measure("127.0.0.1", self.serve(self.token, 3.0), self.token)

        assert 0 < found["round_trip"] < 5
        assert found["bytes_per_second"] > 1e5

    def test_nobody_without_the_token_is_answered(self) -> None:
        with pytest.raises((OSError, WireError), match=r"hung up|reset"):
            netbench.measure("127.0.0.1", self.serve(self.token, 3.0), bytes(32))

    def test_the_token_is_never_sent(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            heard: list[bytes] = []

            def listen() -> None:
                peer, _ = listener.accept()
                with peer:
                    heard.append(peer.recv(4096))

            listening = threading.Thread(target=listen)
            listening.start()
            with pytest.raises((OSError, WireError)):
                netbench.measure("127.0.0.1", listener.getsockname()[1], self.token)
            listening.join()
        assert len(heard[0]) > len(self.token)
        assert self.token not in heard[0]
