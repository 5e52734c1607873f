"""Out of memory: said where the kernel did it, and not said where somebody else sent the signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite import FlowApp, TaskFailed
from flowlite.api.failures import describe_end
from flowlite.node.forkserver.worker_group import describe_end as end_of_worker
from flowlite.node.system.oom import OomWatch
from flowlite.supervise.record import wording

app = FlowApp()
LIMIT = 300_000_000


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of its own for memory, with a limit."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    version_1 = (old / "memory.limit_in_bytes").exists()
    base, limit = (old, "memory.limit_in_bytes") if version_1 else (new, "memory.max")
    made = base / f"flowlite-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / limit).write_text(str(LIMIT))
        swap = made / ("memory.memsw.limit_in_bytes" if version_1 else "memory.swap.max")
        with contextlib.suppress(OSError):
            swap.write_text(str(LIMIT) if version_1 else "0")
    except OSError as error:
        with contextlib.suppress(OSError):
            made.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    yield made
    with contextlib.suppress(OSError):
        made.rmdir()


@app.function(num_instances=2)
def fills(group: str, rank: int) -> None:
    """One rank goes where memory is short, and takes more than there is."""
    if int(os.environ["RANK"]) == rank:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        held = [bytearray(1 << 20) for _ in range(2000)]
        print(len(held))
    signal.pause()


@app.function
def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_the_kernel_ends_for_lack_of_memory(flow_home: Path, group: Path) -> None:
    task = fills.spawn(str(group), 1)
    error = task.exception(90)
    assert isinstance(error, TaskFailed)
    # It went into the group after it had started; the machine's counter tells all the same.
    assert "rank 1 on node 1 was killed by SIGKILL (out of memory" in str(error)
    assert "first failure: node 1, rank 1: killed by SIGKILL (out of memory" in task.reason


def test_a_process_in_a_group_with_a_limit_is_told_with_the_limit(group: Path) -> None:
    code = "input(); held = [bytearray(1 << 20) for _ in range(2000)]"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        watch = OomWatch(process.pid)
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    assert watch.starved()
    assert watch.why() == "out of memory: the kernel ended it, whose control group may have 300 MB"


def test_a_kill_by_somebody_is_not_called_lack_of_memory(flow_home: Path) -> None:
    error = is_killed.spawn().exception(60)
    # Another test may be short of memory just now.
    assert "was killed by SIGKILL (not by the kernel for lack of memory)" in str(error) or (
        "(out of memory? the kernel has ended a process of this machine" in str(error)
    )


class Kernel:
    """Files as a kernel shows them, below a directory."""

    def __init__(self, root: Path, **files: str) -> None:
        self.root = root
        for path, text in files.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def watch(self) -> OomWatch:
        return OomWatch(7, str(self.root))


V2 = {
    "proc/vmstat": "nr_free_pages 1\noom_kill 5\n",
    "proc/meminfo": "MemTotal:       64000000 kB\n",
    "proc/7/cgroup": "0::/slurm/job_9/step_0\n",
    "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/slurm/job_9/step_0/memory.events": "low 0\noom 1\noom_kill 2\n",
    "sys/fs/cgroup/slurm/job_9/memory.max": "8000000000\n",
    "sys/fs/cgroup/slurm/job_9/step_0/memory.max": "max\n",
}
V1 = {
    **V2,
    "proc/7/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc/x\n0::/\n",
    "proc/self/mountinfo": "30 1 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "sys/fs/cgroup/memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "8000000000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
V2_EVENTS, V1_EVENTS = (
    "sys/fs/cgroup/slurm/job_9/step_0/memory.events",
    "sys/fs/cgroup/memory/x/memory.oom_control",
)


@pytest.mark.parametrize(("files", "events"), [(V2, V2_EVENTS), (V1, V1_EVENTS)])
def test_the_counters_of_both_versions_are_read(
    tmp_path: Path, files: dict[str, str], events: str
) -> None:
    kernel = Kernel(tmp_path, **files)
    watch = kernel.watch()
    assert watch.why() == "not by the kernel for lack of memory"
    kernel.write("proc/vmstat", "oom_kill 6\n")
    assert not watch.starved()
    assert watch.why().startswith("out of memory? the kernel has ended a process of this machine")
    kernel.write(events, files[events].replace("oom_kill 2", "oom_kill 3"))
    assert watch.starved()
    assert watch.why() == "out of memory: the kernel ended it, whose control group may have 8 GB"


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    assert OomWatch(7, str(tmp_path)).why() == ""
    assert not OomWatch(7, str(tmp_path)).starved()


def test_a_launcher_whose_child_was_ended_for_lack_of_memory_says_so(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, **V2)
    watch = kernel.watch()
    kernel.write("proc/vmstat", "oom_kill 6\n")
    kernel.write(V2_EVENTS, "oom_kill 3\n")
    files = {name: str(tmp_path / name) for name in ("out", "err", "result", "failure")}
    order = {"rank": 3, "local_rank": 1, "node": 1, "argv": ["torchrun"], **files}
    how = {"code": 1, "signal": None, "stopped": False, "stuck": False}
    ended = {"rank": 3, "started": 0.0, "ended": 1.0, **how}
    body = end_of_worker(order, ended, watch)
    assert "exited with 1 (out of memory: the kernel ended it" in describe_end(body)
    assert "rank 3: exited with 1 (out of memory: the kernel" in wording.first_failure(body)
