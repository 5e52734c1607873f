"""Sweeps and batch scripts on a real Slurm: one job array, and a script that Slurm would run, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.api.client import Flow
from flowlite.testing.slurm import SlurmCluster
from provider_adapters.slurm.queries import parse
from tests.helpers import eventually
from tests.slurm.site import SlurmSite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Four elements at a time; each says which one it is.
SWEEP = """
import os
from flowlite import FlowApp

app = FlowApp()

@app.function(name="sweep", num_instances=1, processes_per_node=1)
def square(number: int) -> list[object]:
    names = ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "ARRAY_TASK_COUNT")
    return [number * number, *(os.environ[f"SLURM_{name}"] for name in names)]

if __name__ == "__main__":
    for told in square.map([1, 2, 3, 4], max_concurrent=4):
        print(*told, flush=True)
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --job-name=steps
#SBATCH --output=/dev/null
echo "job $SLURM_JOB_ID nodes $(scontrol show hostnames | tr '\\n' ' ')"
srun sh -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $(hostname) is $SLURMD_NODENAME'
"""

# What Slurm's own srun does in a script whose options say nothing of cores and of the order of tasks.
SLURMS_OWN = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --mem-per-cpu=100 --export=ALL,SLURM_OPEN_MODE=t
echo "cores ${SLURM_CPUS_PER_TASK-of one} $SLURM_OPEN_MODE"
"$(command -pv srun)" --overlap --chdir=/ sh -c 'echo $SLURM_PROCID on $SLURMD_NODENAME' | sort
"""

# A job of its own on the node of the script, whose task must not become one of the gang: those have a rank.
SUBMITS = """\
#!/bin/bash
#SBATCH --nodes=1
echo "srun sh -c 'echo \\$SLURM_JOB_ID rank \\${{RANK-none}}'" | sed '1i #!/bin/sh' > {shared}/beside.sh
sbatch --wait --nodelist="$SLURMD_NODENAME" --ntasks=1 --output={shared}/beside.out {shared}/beside.sh
srun sh -c 'echo $SLURM_JOB_ID rank $RANK'
"""

# As scripts do that are warned of the end of their time.
AGAIN = """\
#!/bin/bash
#SBATCH --nodes=2
echo "run ${SLURM_RESTART_COUNT:-0}"
if [ -z "$SLURM_RESTART_COUNT" ]; then trap '' TERM; scontrol requeue "$SLURM_JOB_ID"; exit 0; fi
srun echo goes on
"""

AGAIN_PLAINLY = """\
echo "run ${SLURM_RESTART_COUNT:-0}"
if [ -n "$SLURM_RESTART_COUNT" ]; then echo goes on; exit 0; fi
scontrol show job "$SLURM_JOB_ID" | grep -q "JobId=$SLURM_JOB_ID" || exit 3
trap 'scontrol requeue "$SLURM_JOB_ID"; exit 0' USR1
kill -USR1 $$
"""

# The profile of a site, which defines `module` for login shells, and what scripts rely on that no login shell runs.
PROFILE = 'module() { export LOADED="$2" PATH="/opt/$2/bin:$PATH"; }\n'
LOADS = """\
#!/bin/bash
#SBATCH --nodes=2
set -eu
python=$(command -v python3)
module load cuda
echo "$LOADED $(command -v python3) $python"
srun bash -c 'case $PATH in *:/opt/cuda/bin:*) echo "$LOADED" ;; esac; module load nccl; echo "$LOADED"'
"""

STAYS = """\
#!/bin/bash
#SBATCH --nodes=1 --array=0-2%1 --job-name=line
echo element $SLURM_ARRAY_TASK_ID
while [ ! -e {go} ]; do sleep 0.1; done
"""


def run(site: SlurmSite, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program on the laptop."""
    with site.slurm.enter_laptop():
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=240, cwd=cwd, env=os.environ
        )


def test_a_map_is_one_array(slurm_site: SlurmSite, slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    done = run(slurm_site, sys.executable, "sweep.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert [words[0] for words in found] == ["1", "4", "9", "16"]
    assert len({words[1] for words in found}) == 1
    assert [words[2:] for words in found] == [[str(n), "4"] for n in range(4)]
    assert slurm.jobs() == []


def test_the_elements_of_an_array_are_found_in_the_accounts(slurm: SlurmCluster) -> None:
    """Those that wait have one line, and those that began have one each."""
    comment = "flowlite:abcd:array-one:one"
    submit = ("sbatch", "--parsable", "--array=0-3%1", f"--comment={comment}", "--output=/dev/null")
    number = slurm.run(*submit, "--wrap", "sleep 600", user="flow").strip()
    format = ("sacct", "-n", "-P", "-X", "-D", "-o", parse.ACCOUNTING_FORMAT, "-j", number)

    def states() -> list[str]:
        found = parse.accounting(slurm.run(*format, user="flow"))
        assert {(parse.number_of(job), job.comment) for job in found} <= {(number, comment)}
        return [job.state for job in found]

    eventually(lambda: sorted(states()) == ["PENDING", "RUNNING"], timeout=60)
    slurm.run("scancel", number, user="flow")
    eventually(lambda: "CANCELLED" in states() and "RUNNING" not in states(), timeout=60)


def test_a_batch_script_in_a_job(
    slurm_site: SlurmSite, slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    done = run(slurm_site, sys.executable, "-m", "flowlite.cli", "run", "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(line.partition("] ")[2].partition("] ")[2] for line in done.stdout.splitlines())
    (first,) = (line.split() for line in said if line.startswith("job"))
    hosts = first[3:]
    assert len(hosts) == 2
    assert first[1].isdecimal()
    assert slurm.job(int(first[1]))["NumNodes"] == "2"
    assert [line for line in said if line.startswith("task")] == [
        f"task {n} of 4 on {hosts[n // 2]} is {hosts[n // 2]}" for n in range(4)
    ]


def test_slurms_own_srun_in_a_script(slurm_site: SlurmSite, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(SLURMS_OWN)
    done = run(slurm_site, sys.executable, "-m", "flowlite.cli", "run", "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition("] ")[2].partition("] ")[2] for line in done.stdout.splitlines()]
    assert said[0] == "cores of one t"
    hosts = [line.partition(" on ")[2] for line in said[1:]]
    assert said[1:] == [f"{n} on {hosts[n]}" for n in range(4)], done.stderr
    # Node after node, as the four tasks of the script.
    assert hosts == [hosts[0]] * 2 + [hosts[3]] * 2
    assert hosts[0] != hosts[3]


def test_a_job_that_a_script_submits_is_none_of_its_gang(
    slurm_site: SlurmSite, slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text(SUBMITS.format(shared="/mnt/shared"))
    done = run(slurm_site, sys.executable, "-m", "flowlite.cli", "run", "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition("] ")[2].partition("] ")[2] for line in done.stdout.splitlines()]
    submitted, mine = said[0].split()[-1], said[-1].split()
    assert mine == [mine[0], "rank", "0"]
    assert (slurm.shared / "beside.out").read_text().split() == [submitted, "rank", "none"], said
    assert submitted != mine[0]


def test_a_script_that_has_itself_queued_again_runs_again(
    slurm_site: SlurmSite, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text(AGAIN)
    done = run(slurm_site, sys.executable, "-m", "flowlite.cli", "run", "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rpartition("] ")[2] for line in done.stdout.splitlines()]
    assert [line for line in said if line.startswith(("run", "goes"))] == [
        *("run 0", "run 1", "goes on", "goes on")
    ]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_plain_command_that_has_its_job_queued_again_runs_again(
    slurm_site: SlurmSite, tmp_path: Path, nodes: int
) -> None:
    options = ("--num-instances", str(nodes), "--processes-per-node", "1")
    words = ("-m", "flowlite.cli", "run", *options, "--", "bash", "-c", AGAIN_PLAINLY)
    done = run(slurm_site, sys.executable, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rpartition("] ")[2] for line in done.stdout.splitlines()]
    ran = [line for line in said if line.startswith(("run", "goes"))]
    assert sorted(ran) == sorted(nodes * ["run 0", "run 1", "goes on"]), said


def test_a_script_that_loads_modules(
    slurm_site: SlurmSite, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """sbatch hands the function on that loads them, and flowlite nothing of the environment of its caller."""
    (tmp_path / "job.sbatch").write_text(LOADS)
    files = [host.root / "etc" / "profile.d" / "flowlite-modules.sh" for host in slurm.nodes]
    try:
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text(PROFILE)
        done = run(
            slurm_site, sys.executable, "-m", "flowlite.cli", "run", "job.sbatch", cwd=tmp_path
        )
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rpartition("] ")[2] for line in done.stdout.splitlines()]
    python = Path(sys.executable).with_name("python3")
    assert said[0] == f"cuda {python} {python}"
    assert sorted(said[1:]) == ["cuda"] * 2 + ["nccl"] * 2


def test_elements_wait_in_line_and_one_is_cancelled(
    slurm_site: SlurmSite, slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text(STAYS.format(go=slurm.shared / "go"))
    words = ("run", "--detach", "job.sbatch")
    done = run(slurm_site, sys.executable, "-m", "flowlite.cli", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = (Flow().get_task(name) for name in done.stdout.split())
    with slurm.enter_laptop():
        eventually(lambda: [x.text for x in first.logs()] == ["element 0"], timeout=90, every=0.2)
        eventually(lambda: "may at a time" in second.reason, every=0.2)
        second.cancel()
        second.wait(90)
        assert str(second.status) == "cancelled"
        assert str(first.status) == "running"
        slurm_site.go()
        third.wait(120)
        assert [str(first.wait(90).status), str(third.status)] == ["completed", "completed"]
        assert [line.text for line in third.logs()] == ["element 2"]
