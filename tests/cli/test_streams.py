"""What becomes of a command, and of its exit status, if its output cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FLOW = f"{sys.executable} -m flowlite.cli"
FAILS = "run -- sh -c 'echo hi; sleep 1; echo more; exit 3'"
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
GOES_ON = "continues, and this command waits for its end"

PROGRAM = """\
import sys, time
from pathlib import Path
from flowlite import FlowApp

app = FlowApp()


@app.function()
def work() -> int:
    print("hi")
    time.sleep(1)
    return 7


if __name__ == "__main__":
    Path("result").write_text(str(work.remote()))
"""


def bash(line: str, home: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env={**os.environ, "FLOW_HOME": str(home)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize(
    "line",
    [
        f"{FLOW} {FAILS} | head -1",
        f"{FLOW} {FAILS} 2>&1 | head -1",
        pytest.param(f"{FLOW} {FAILS} >/dev/full", marks=FULL),
        pytest.param(f"{FLOW} {FAILS} 2>/dev/full", marks=FULL),
    ],
    ids=["head", "head of both", "full disk", "full disk for messages"],
)
def test_the_exit_status_is_that_of_the_task(line: str, flow_home: Path, tmp_path: Path) -> None:
    done = bash(line, flow_home, tmp_path)
    assert done.returncode == 1
    told = GOES_ON in done.stderr
    assert told == ("2>" not in line), done.stderr


@FULL
@pytest.mark.parametrize("options", ["", "--json "])
def test_a_full_disk_is_told_where_messages_go_to_a_file(
    options: str, flow_home: Path, tmp_path: Path
) -> None:
    """Both are files, and only one of them cannot grow."""
    done = bash(f"{FLOW} run {options}-- echo hi >/dev/full 2>messages", flow_home, tmp_path)
    assert done.returncode == 1
    assert "No space left on device" in (tmp_path / "messages").read_text()
    done = bash(f"{FLOW} status {options}>/dev/full 2>messages", flow_home, tmp_path)
    assert done.returncode == 1
    said = (tmp_path / "messages").read_text()
    assert said == "error: [Errno 28] No space left on device\n"
    # Longer than what is buffered.
    done = bash(f"{FLOW} run -d -- echo {'x' * 9000}", flow_home, tmp_path)
    task = done.stdout.strip()
    done = bash(f"{FLOW} status {options}{task} >/dev/full 2>messages", flow_home, tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "messages").read_text() == said


@pytest.mark.parametrize("messages", ["2>&1 | true", pytest.param("2>/dev/full", marks=FULL)])
def test_a_plan_that_nobody_can_read_is_still_carried_out(
    messages: str, flow_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "flow.toml").write_text("[providers.local]\nprice_per_hour = 2.0\n")
    done = bash(f"{FLOW} {FAILS} {messages}", flow_home, tmp_path)
    assert done.returncode == 1, done.stderr
    (task,) = json.loads(bash(f"{FLOW} status --json", flow_home, tmp_path).stdout)["data"]
    assert task["status"] == "failed"


def test_an_array_goes_on_without_a_reader(flow_home: Path, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --array=1-3\nsleep 1; exit $(( SLURM_ARRAY_TASK_ID == 2 ))\n"
    )
    done = bash(f"{FLOW} run job.sbatch 2>&1 | head -1", flow_home, tmp_path)
    assert done.returncode == 1, done.stderr
    ends = json.loads(bash(f"{FLOW} status --json", flow_home, tmp_path).stdout)["data"]
    assert sorted(each["status"] for each in ends) == ["completed", "completed", "failed"]


def test_an_array_is_submitted_as_a_whole_without_a_reader(flow_home: Path, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --array=1-3\ntrue\n")
    done = bash(f"{FLOW} run --detach job.sbatch | true", flow_home, tmp_path)
    assert done.returncode == 0, done.stderr
    all_of_them = json.loads(bash(f"{FLOW} status --json", flow_home, tmp_path).stdout)["data"]
    assert len(all_of_them) == 3


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_the_shell_closed(closed: str, flow_home: Path, tmp_path: Path) -> None:
    done = bash(f"{FLOW} run -- sh -c 'echo hi' {closed}", flow_home, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("hi\n" in done.stdout) == (" >&-" not in f" {closed}")
    assert bash(f"{FLOW} status {closed}", flow_home, tmp_path).returncode == 0
    done = bash(f"{FLOW} gc {closed}", flow_home, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("messages", ["2>&1 | head -1", pytest.param("2>/dev/full", marks=FULL)])
def test_a_program_gets_its_result(messages: str, flow_home: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    bash(f"{sys.executable} program.py {messages}", flow_home, tmp_path)
    assert (tmp_path / "result").read_text() == "7"
