"""The project on hosts: what lies here lies there, sent once, and a task of its own cannot change it for others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab

TRAIN = """
import os, pathlib, sys
print("rank", os.environ["RANK"], "reads", pathlib.Path("data.csv").read_text().strip(), sys.argv[1:])
print("in", pathlib.Path.cwd().name, sorted(p.name for p in pathlib.Path().iterdir()))
pathlib.Path("data.csv").write_text("changed by a task")
"""

FUNCTION = """
import os
from pathlib import Path
from flowlite import FlowApp

app = FlowApp(provider="ssh")
HERE = Path(__file__).parent
BESIDE = (HERE / "data.csv").read_text()

@app.function
def read(name: str) -> str:
    os.chdir("/")
    return " ".join([(HERE / name).read_text(), BESIDE, Path(__file__).parent.name])

if __name__ == "__main__":
    print(read.remote("data.csv"))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text(TRAIN)
    (root / "data.csv").write_text("1,2,3")
    (root / ".gitignore").write_text("*.pt\n/private/\n")
    (root / "model.pt").write_text("large")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def run_on_laptop(lab: Lab, project: Path, program: str) -> str:
    """What a program prints that is run on the laptop."""
    with lab.cluster.enter_laptop():
        done = subprocess.run(
            [sys.executable, program],
            env=lab.environment,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, f"{done.stderr}\n{lab.supervisor_logs()}"
    return done.stdout


def sent(lab: Lab) -> list[int]:
    """How many files went to each node."""
    return [int(n) for n in re.findall(r"sent (\d+) files of the project", lab.supervisor_logs())]


def test_a_command_finds_its_script_and_its_data(lab: Lab, project: Path) -> None:
    words = ("run", "-N", "2", "--", "python", "train.py", "--lr", "1")
    done = lab.flow(*words, cwd=project)
    for rank in (0, 1):
        assert f"rank {rank} reads 1,2,3 ['--lr', '1']" in done.stdout
    assert "in project ['.gitignore', 'data', 'data.csv', 'train.py']" in done.stdout
    assert sent(lab) == [3, 3]
    # The hosts have it all, though the first task wrote into its copy.
    assert "rank 1 reads 1,2,3" in lab.flow(*words, cwd=project).stdout
    assert sent(lab) == [3, 3]


def test_only_what_changed_is_sent_and_nothing_old_is_left(lab: Lab, project: Path) -> None:
    (project / "old.csv").write_text("old")
    lab.flow("run", "--", "python", "train.py", cwd=project)
    (project / "old.csv").unlink()
    (project / "data.csv").write_text("4,5,6")
    done = lab.flow("run", "--", "python", "train.py", cwd=project)
    assert "rank 0 reads 4,5,6" in done.stdout
    assert "old.csv" not in done.stdout
    assert sorted(sent(lab)) == [1, 4]


def test_while_it_is_sent_one_sees_how_much(lab: Lab, project: Path) -> None:
    (project / "large.bin").write_bytes(os.urandom(40_000_000))
    (project / "train.py").write_text("print('here')")
    # Some MB in a second is what SSH moves to a host that is far away.
    lab.hosts[0].delay(150)
    words = ("run", "-N", "1", "--", "python", "train.py")
    said = lab.flow(*words, cwd=project, seconds=200).stderr
    assert re.search(
        r"starting: sending the project: 4 files to node 0, [\d.]+ [kM]?B of 40 MB", said
    )


STAY = """
import os, pathlib, time
print(os.environ["FLOW_ATTEMPT"], os.uname().nodename, pathlib.Path("data.csv").read_text(), flush=True)
while not os.path.exists("/mnt/shared/go"):
    time.sleep(0.1)
"""


@pytest.mark.long
def test_a_node_that_replaces_another_has_the_project(lab: Lab, project: Path) -> None:
    (project / "stay.py").write_text(STAY)
    words = ("-N", "2", "--retries", "1", "--", "python", "stay.py")
    task = lab.flow("run", "--detach", *words, cwd=project).stdout.split()[-1]
    first, second = lab.hosts[:2]
    eventually(lambda: lab.flow("logs", task).stdout.count(" 1,2,3") == 2, every=0.5)
    # What is sent now is as it was, too.
    (project / "data.csv").write_text("4,5,6")
    second.kill()
    eventually(lambda: lab.flow("logs", task).stdout.count(" 1,2,3") == 4, timeout=90, every=0.5)
    said = lab.flow("logs", task).stdout
    assert f"2 {first.name} 1,2,3" in said
    assert f"2 {second.name}" not in said
    first.exec(["touch", "/mnt/shared/go"])
    lab.wait(task, "completed")


WARM = """
import os
from pathlib import Path
from flowlite import FlowApp

app = FlowApp(provider="ssh")

@app.function(keep_warm="5m")
def read() -> str:
    Path("written.csv").write_text("left by a task")
    import beside
    return f"{Path('data.csv').read_text()} {beside.WHAT} {sorted(os.listdir())}"

if __name__ == "__main__":
    print(read.remote())
"""


def test_a_warm_host_has_the_project_of_each_task(lab: Lab, project: Path) -> None:
    (project / "work.py").write_text(WARM)
    for text in ("1,2,3", "4,5,6"):
        (project / "data.csv").write_text(text)
        (project / "beside.py").write_text(f"WHAT = 'code of {text}'\n")
        done = run_on_laptop(lab, project, "work.py")
        assert done.startswith(
            f"{text} code of {text} ['.gitignore', 'beside.py', 'data', 'data.csv',"
        )
        assert done.count("written.csv") == 1
    kept = lab.json("hosts", "list")
    assert [each["state"] for each in kept].count("warm") == 1
    # The second run sent only what had changed.
    assert sorted(sent(lab))[:1] == [2]


def test_a_directory_below_the_root(lab: Lab, project: Path) -> None:
    below = project / "experiments"
    below.mkdir()
    (below / "go.sh").write_text("#!/bin/sh\npwd; cat ../data.csv\n")
    (below / "go.sh").chmod(0o755)
    done = lab.flow("run", "--", "./go.sh", cwd=below)
    assert re.search(r"/project/experiments\n", done.stdout)
    assert "1,2,3" in done.stdout
    done = lab.flow("run", "--workdir", "experiments", "--", "./go.sh", cwd=project)
    assert re.search(r"/project/experiments\n", done.stdout)


def test_a_function_finds_it_too(lab: Lab, project: Path) -> None:
    (project / "work.py").write_text(FUNCTION)
    assert run_on_laptop(lab, project, "work.py") == "1,2,3 1,2,3 project\n"


def test_files_from_elsewhere(lab: Lab, project: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("7,8,9")
    place = f"data.csv={tmp_path / 'other.csv'}"
    done = lab.flow(
        "run",
        "--file",
        place,
        "--file",
        "model.pt",
        "--",
        "cat",
        "data.csv",
        "model.pt",
        cwd=project,
    )
    assert "7,8,9" in done.stdout
    assert "large" in done.stdout
    done = lab.flow("run", "--no-sync", "--file", place, "--", "ls", cwd=project)
    assert done.stdout.split()[-1:] == ["data.csv"]
    assert "train.py" not in done.stdout


def test_nothing_travels_without_sync(lab: Lab, project: Path) -> None:
    done = lab.flow("run", "--no-sync", "--", "sh", "-c", "pwd; ls -A | wc -l", cwd=project)
    assert "/project\n" in done.stdout
    assert re.search(r"\b0\n", done.stdout)
    assert sent(lab) == []


def test_a_working_directory_that_a_host_lacks(lab: Lab, project: Path) -> None:
    words = ("run", "-N", "2", "--workdir", "/no/such", "--", "true")
    said = " ".join(lab.flow(*words, cwd=project, code=1).stderr.split())
    assert "cannot start in the working directory /no/such: No such file or directory. An" in said
    assert "node0" in said
    assert "all ranks started" not in said


def test_a_command_that_names_a_file_which_is_only_here_is_refused(
    lab: Lab, project: Path, tmp_path: Path
) -> None:
    refused = lab.flow("run", "--no-sync", "--", "python", "train.py", cwd=project, code=2).stderr
    assert "the command names train.py, which is only on this machine: nothing travels" in refused
    refused = lab.flow("run", "--", "cat", "--from=model.pt", cwd=project, code=2).stderr
    assert "names model.pt, which is only on this machine: git ignores it. Send it with" in refused
    (tmp_path / "beside.csv").write_text("1")
    refused = lab.flow("run", "--", "cat", "../beside.csv", cwd=project, code=2).stderr
    assert "it lies outside of the project" in refused
    assert lab.json("status") == []


def test_what_is_too_large_is_refused_with_the_better_ways(lab: Lab, project: Path) -> None:
    (project / "big.npy").write_bytes(bytes(3_000_000))
    lab.environment["FLOW_MAX_PROJECT_SIZE"] = "2MB"
    refused = lab.flow("run", "--", "python", "train.py", cwd=project, code=2).stderr
    said = " ".join(refused.split())
    assert "4 files, 3 MB, and the setting max_project_size is 2 MB" in said
    for words in ("The largest are big.npy (3 MB)", "volumes=", "mounts=", "files="):
        assert words in said


def test_a_dry_run_says_what_travels(lab: Lab, project: Path) -> None:
    shown = lab.flow("run", "--dry-run", "--", "python", "train.py", cwd=project).stdout
    assert re.search(r"files\s+3 of .*/project, \d+ B", shown)
    assert re.search(r"left out\s+model.pt", shown)
    data = lab.json("run", "--dry-run", "--", "true")
    assert data["files"] is None


def test_two_tasks_on_one_host_have_a_directory_each(lab: Lab, project: Path) -> None:
    script = 'echo $FLOW_TASK_ID > mine; sleep 1; [ "$(cat mine)" = $FLOW_TASK_ID ] && echo kept'
    (project / "both.sh").write_text(script)
    ids = [
        lab.flow("run", "-d", "-N", "4", "--", "sh", "both.sh", cwd=project).stdout.split()[-1]
        for _ in range(2)
    ]
    for each in ids:
        assert lab.flow("logs", each, "-f").stdout.count("kept") == 4


def test_a_second_attempt_finds_what_the_first_has_written(lab: Lab, project: Path) -> None:
    script = "if [ -f done ]; then cat done data.csv; else echo first > done; exit 3; fi"
    (project / "again.sh").write_text(script)
    done = lab.flow("run", "--retries", "1", "--", "sh", "again.sh", cwd=project)
    assert "first" in done.stdout
    assert "1,2,3" in done.stdout


def test_large_and_odd_files_arrive_as_they_are(lab: Lab, project: Path) -> None:
    content = os.urandom(5_000_000)
    (project / "data/large.bin").write_bytes(content)
    (project / "data/ two\nlines ü.txt").write_text("odd")
    os.symlink("data/large.bin", project / "link")
    (project / "sums.py").write_text(
        "import hashlib, pathlib\n"
        "print(hashlib.sha256(pathlib.Path('link').read_bytes()).hexdigest())\n"
        "print(pathlib.Path('data/ two\\nlines ü.txt').read_text())\n"
    )
    import hashlib

    done = lab.flow("run", "-N", "2", "--", "python", "sums.py", cwd=project)
    assert done.stdout.count(hashlib.sha256(content).hexdigest()) == 2
    assert done.stdout.count("odd") == 2
    listed = json.loads((next(lab.home.glob("tasks/*/bundle/project.json"))).read_bytes())
    assert listed["links"] == {"link": "data/large.bin"}
    assert not list(lab.home.glob("tasks/*/bundle/pack-*"))
