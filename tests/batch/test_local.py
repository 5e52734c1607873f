"""Batch scripts on this machine: what the guides' scripts do, and what `srun` promises."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.api.client import Flow
from tests.batch.conftest import FLOW, Run
from tests.helpers import assert_no_process_left, eventually

# As in the OpenCLIP guide: four tasks on each node, addresses by scontrol, the project's directory as PYTHONPATH.
CLIP = """\
#!/bin/bash -x
#SBATCH --nodes=2
#SBATCH --gres=gpu:2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=6
#SBATCH --wait-all-nodes=1
#SBATCH --job-name=clip_vit
#SBATCH --account=ACCOUNT_NAME
#SBATCH --partition=PARTITION_NAME
#SBATCH --time=1-00:00:00
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
eval "$(./conda shell.bash hook)"
conda activate open_clip
export MASTER_PORT={port}
export OMP_NUM_THREADS=1

master_addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$master_addr
echo "Number of nodes: $SLURM_JOB_NUM_NODES"
echo "Tasks per node: $SLURM_NTASKS_PER_NODE"
cd open_clip
export PYTHONPATH="$PYTHONPATH:$PWD/src"
srun --cpu_bind=v --accel-bind=gn python -u src/train.py \\
    --train-data "/data/{{00000..41455}}.tar" \\
    --lr 5e-4 \\
    --name "vit-$CONDA_DEFAULT_ENV" \\
    --local-loss \\
    --gather-with-grad
"""


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def texts(out: str) -> list[str]:
    """Lines of the log without their labels, sorted."""
    return sorted(
        re.sub(r"^\[Node \d+(?:, rank \d+)?\] \[[\d:]+\] ", "", line) for line in out.splitlines()
    )


@pytest.mark.slow
def test_the_guides_script_trains(run: Run) -> None:
    port = free_port()
    done = run(CLIP.format(port=port))
    assert done.returncode == 0, done.stdout + done.stderr
    said = texts(done.stdout)
    assert [line for line in said if line.startswith("rank ")] == [
        f"rank {rank} local {rank % 2} world 4 sum 10 lr 0.0005" for rank in range(4)
    ]
    assert said.count(f"master 127.0.0.1:{port} rest 4") == 4
    assert "Number of nodes: 2" in said
    assert "Tasks per node: 2" in said
    # Each rank's output is its own: by node, and by rank.
    assert re.search(r"\[Node 1(?:, rank 3)?\] \[[\d:]+\] rank 3 ", done.stdout)
    for word in ("--output=logs", "--account=ACCOUNT_NAME", "no model"):
        assert word in done.stderr
    logs = Flow().get_task("clip_vit").logs(rank=2)
    assert [line.text for line in logs if line.text.startswith("rank")] == [
        "rank 2 local 0 world 4 sum 10 lr 0.0005"
    ]


LIMITS = r"""#!/bin/bash
#SBATCH --nodes=2
tell='echo "$(umask) $(ulimit -Sn) $(ulimit -Ss)"'
same=$(eval "$tell")
srun sh -c "test \"\$($tell)\" = '$same' && echo as the node"
umask 027
ulimit -Sn 321
ulimit -Ss 4321
srun -l bash -c "$tell; echo mine > \$OUT/\$SLURM_PROCID" | sort
stat -c %a "$OUT/0" "$OUT/1"
"""


def test_limits_and_umask_of_a_script_are_those_of_its_tasks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    done = run(LIMITS, "--env", "OUT")
    assert sorted(texts(done.stdout)) == [
        *("0: 0027 321 4321", "1: 0027 321 4321", "640", "640", "as the node", "as the node")
    ], done.stderr


SEMANTICS = r"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
echo "args: $1/$2 rank: ${RANK-none} procid: $SLURM_PROCID"
echo "labelled: $(srun -l sh -c 'echo t$SLURM_PROCID' | sort | tr '\n' ' ')"
echo "captured: $(srun -N1 -n1 sh -c 'echo $SLURM_NTASKS $WORLD_SIZE')"
second=$(scontrol show hostnames | sed -n 2p)
echo "second: $(srun -w $second -n1 sh -c 'echo $SLURMD_NODENAME $SLURM_NODEID $FLOW_NODE_RANK')" = $second
echo "input: $(printf 'one\ntwo\n' | srun -n2 sh -c 'wc -l' | tr -d ' ' | tr '\n' ' ')"
export NEW=given; unset GONE
echo "export: $(srun -n1 sh -c 'echo $NEW'), $(srun -n1 --export=NONE sh -c 'echo ${NEW-none}')"
echo "quoted: $(srun -n1 --export=ALL,NEW="'a,b'" sh -c 'echo $NEW')"
printf 'b10\nb2\na1\n' > "$OUT/hosts"
echo "hosts: $(scontrol show hostlist "$OUT/hosts") $(scontrol show hostlistsorted b10,b2,a1,b1)"
echo "torchrun: $(srun --ntasks-per-node=1 sh -c 'echo $SLURM_NODEID/$SLURM_NNODES' | sort | tr '\n' ' ')"
cd /; echo "cwd: $(srun -n1 pwd)"
srun -n4 sh -c 'test $SLURM_PROCID != 2 || exit 7; sleep 600'
echo "failed: $?"
srun -K0 -n4 sh -c 'test $SLURM_PROCID != 2 || exit 7; exit 0'
echo "independent: $?"
srun -n4 sh -c 'trap "" TERM; test $SLURM_PROCID = 0 || sleep 0.5; exit $((SLURM_PROCID + 3))'
echo "highest: $?"
echo "job: $(for job in "job $SLURM_JOB_ID" job "jobid -dd $SLURM_JOB_ID" "job=$SLURM_JOB_ID"; do
    scontrol show $job | grep -o ^JobId; done | tr '\n' ' ')of ${SLURM_JOB_USER-} ${SLURM_JOB_UID-}"
srun -n1 sh -c 'kill -9 $$'
echo "killed: $?"
srun -n1 /does/not/exist
echo "missing: $?"
srun --pty bash
echo "refused: $?"
srun -o "$OUT/out-%t.txt" sh -c 'echo file $SLURM_PROCID'
srun -n2 -o "$OUT/all.txt" echo same
cat "$OUT"/out-*.txt | tr '\n' ' '; wc -l < "$OUT/all.txt"
srun -n1 sh -c "yes | head -c 3000000" | wc -c
srun -t 0:01 -n1 sleep 600
echo "limit: $?"
left=$(timeout -k 1 40 srun -n1 sh -c 'sleep 300 & echo said')
echo "left behind: $left $?"
sleep 0.1 & srun -n1 true & srun -n1 true & wait
echo "steps: $(srun -n1 sh -c 'test $SLURM_STEP_ID -ge 19 && echo counted')"
exit 5
"""


def test_what_srun_promises(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("GONE", "1")
    done = run(SEMANTICS, "--env", "OUT", arguments=("a b", "c"))
    said = texts(done.stdout)
    for line in (
        "args: a b/c rank: none procid: 0",
        "labelled: 0: t0 1: t1 2: t2 3: t3 ",
        "captured: 1 1",
        "second: 127.0.0.2 0 1 = 127.0.0.2",
        "input: 2 2 ",
        "export: given, none",
        "quoted: 'a,b'",
        "hosts: b[10,2],a1 a1,b[1-2,10]",
        "torchrun: 0/2 1/2 ",
        "cwd: /",
        "failed: 7",
        "independent: 7",
        "highest: 6",
        f"job: JobId JobId JobId JobId of {getpass.getuser()} {os.getuid()}",
        "killed: 137",
        "missing: 127",
        "refused: 1",
        "file 0 file 1 file 2 file 3 2",
        "3000000",
        "limit: 1",
        "left behind: said 0",
        "steps: counted",
    ):
        assert line in said, (line, done.stdout, done.stderr)
    assert any("task 2: Exited with exit code 7" in line for line in said)
    assert done.returncode == 1
    assert "exited with 5" in done.stderr


FILES = r"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
cd "$OUT"
both='for i in 1 2 3 4 5; do echo out; echo err >&2; sleep 0.02; done'
for file in step.txt task-0.txt node-0.txt; do echo earlier > $file; done
srun -o step.txt sh -c "$both"
srun -o task-%t.txt sh -c "$both"
srun -o node-%n.txt sh -c "$both"
for file in step.txt task-0.txt node-0.txt; do echo $file $(sort $file | uniq -c); done
srun -n1 --open-mode=append -o node-%n.txt echo more
wc -l < node-0.txt
timeout -k 1 30 srun -n1 -l sh -c "head -c 300000 /dev/zero | tr '\\0' '\\r'; until test -e seen; do sleep 0.1; done" |
    { head -c 1000 | wc -c; touch seen; cat > /dev/null; }
timeout 60 srun yes 2>&1 | head -1
echo "closed: ${PIPESTATUS[0]}"
"""


def test_output_that_several_write_to_one_file_is_all_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    done = run(FILES, "--env", "OUT")
    assert done.returncode == 0, done.stdout + done.stderr
    assert texts(done.stdout) == [
        "1000",
        "21",
        "closed: 1",
        "node-0.txt 10 err 10 out",
        "step.txt 20 err 20 out",
        "task-0.txt 5 err 5 out",
        "y",
    ]


# Writes until nothing more is taken for half a second, or far more than may be under way is.
FILL = """\
import os, select
os.set_blocking(1, False)
taken = 0
while taken < 32 << 20 and select.select([], [1], [], 0.5)[1]:
    taken += os.write(1, bytes(4096))
open("taken", "w").write(str(taken))
"""
INPUT = r"""#!/bin/bash
#SBATCH --nodes=2
cd "$OUT"
python3 fill.py | srun -n2 sh -c 'until test -e taken; do sleep 0.05; done'
echo "taken: $(($(cat taken) >> 20)) MiB"
yes | srun -n2 sh -c 'exec <&-; echo closed'
head -c 3000000 /dev/zero | srun -n2 sh -c 'test $SLURM_PROCID = 0 || exec </dev/null; wc -c'
srun -n 0 true
echo "none: $?"
"""


def test_the_input_of_a_step_waits_for_the_task_that_reads_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    (tmp_path / "fill.py").write_text(FILL)
    done = run(INPUT, "--env", "OUT")
    assert done.returncode == 0, done.stdout + done.stderr
    assert texts(done.stdout) == [
        "0",
        "3000000",
        "closed",
        "closed",
        "none: 1",
        "srun: error: --ntasks=0: give a whole number, 1 or more",
        "taken: 0 MiB",
    ]


def test_a_script_that_is_cancelled_leaves_nothing(project: Path, flow_home: Path) -> None:
    (project / "job.sbatch").write_text(
        '#!/bin/bash\n#SBATCH --nodes=2\nsrun sh -c \'trap "echo task $SLURM_PROCID saves; exit 0" TERM; '
        "echo up; while :; do sleep 0.1; done'\n"
    )
    subprocess.run(
        [*FLOW, "run", "--detach", "job.sbatch"], cwd=project, check=True, capture_output=True
    )
    task = Flow().get_task("job")
    eventually(lambda: [line.text for line in task.logs()].count("up") == 2)
    task.cancel()
    task.wait(90)
    assert str(task.status) == "cancelled"
    said = [line.text for line in task.logs()]
    assert sorted(line for line in said if "saves" in line) == ["task 0 saves", "task 1 saves"]
    assert_no_process_left(task.id)


def test_a_rank_that_is_killed_ends_the_step_and_is_named(project: Path, flow_home: Path) -> None:
    (project / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nset -e\n"
        "srun sh -c 'test $SLURM_PROCID = 1 && kill -9 $PPID; exec sleep 600'\n"
    )
    done = subprocess.run(
        [*FLOW, "run", "job.sbatch"],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 1
    assert "rank 1" in done.stderr
    assert "SIGKILL" in done.stderr
    assert_no_process_left(Flow().get_task("job").id)


SIGNALS = r"""#!/bin/bash
#SBATCH --nodes=2 --time=1-0 --signal=B:USR1@86390
trap 'warned=yes' USR1
srun sh -c 'trap "echo task $SLURM_PROCID warned; exit 0" USR2; touch up.$SLURM_PROCID; while :; do sleep 0.1; done' &
until [ -e up.0 ] && [ -e up.1 ]; do sleep 0.1; done
kill -USR2 $!
until wait $!; do :; done
until [ "$warned" ]; do sleep 0.1; done
echo script warned
"""


def test_signals_reach_the_script_and_its_tasks(run: Run) -> None:
    """`#SBATCH --signal`, some time before the longest run is over; and what the script sends to its srun."""
    done = run(SIGNALS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert texts(done.stdout) == ["script warned", "task 0 warned", "task 1 warned"]


NEARLY_OVER = r"""#!/bin/bash
#SBATCH --ntasks=2 --time=0:20
trap 'echo script ends' EXIT
srun sh -c 'trap "echo task $SLURM_PROCID stops; exit 0" TERM; while :; do sleep 0.1; done'
echo "steps ended with $?"
"""


def test_nobody_is_killed_by_the_notice_before_the_end_of_the_time(run: Run) -> None:
    """SIGUSR2, which `srun` would pass on to tasks that do not handle it."""
    done = run(NEARLY_OVER)
    assert "User defined signal 2" not in done.stdout
    assert "SIGUSR2" not in done.stderr
    assert {"task 0 stops", "task 1 stops"} <= set(texts(done.stdout)), done.stdout + done.stderr
    assert "max_run_time_hours" in done.stderr
    assert done.returncode == 1


def test_a_restarted_job_knows_it(project: Path, run: Run) -> None:
    done = run(
        "#!/bin/bash\n#SBATCH -N1\necho restart ${SLURM_RESTART_COUNT-0} of $SLURM_JOB_ID\n"
        "test $SLURM_RESTART_COUNT\n",
        "--retries",
        "1",
    )
    assert done.returncode == 0, done.stderr
    first, second = [line.split() for line in texts(done.stdout) if line.startswith("restart")]
    assert (first[1], second[1]) == ("0", "1")
    assert first[3] == second[3]


def test_a_dry_run_names_what_has_no_effect(run: Run) -> None:
    done = run(CLIP.format(port=1), "--dry-run")
    assert done.returncode == 0
    assert "2 × this machine" in done.stdout
    assert "--partition=PARTITION_NAME has no effect outside Slurm" in done.stderr


def test_mistakes_are_found_before_anything_starts(run: Run) -> None:
    done = run("#!/bin/bash\n#SBATCH --dependency=afterok:3\ntrue\n")
    assert done.returncode == 2
    assert "job.sbatch:2: --dependency cannot be honoured outside Slurm" in done.stderr
    done = run("#!/bin/bash\n#SBATCH -N1\ntrue\n", "--manual")
    assert done.returncode == 2
    assert "--manual does not go with a batch script" in done.stderr


def test_from_python_and_in_python(
    project: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of the first line runs it."""
    (project / "job.sbatch").write_text(
        f"#!{sys.executable} -u\n#SBATCH -n2\nimport os, subprocess\n"
        "assert os.environ['SLURM_JOB_ID'].isdecimal()\n"
        "raise SystemExit(subprocess.call(['srun', 'sh', '-c', 'echo hello $SLURM_PROCID']))\n"
    )
    monkeypatch.chdir(project)
    task = Flow().run("job.sbatch", wait=True)
    assert task.exception() is None
    assert sorted(line.text for line in task.logs()) == ["hello 0", "hello 1"]


PROFILES = {
    "login": "#!/bin/bash -l\n",
    "read": "#!/bin/bash\n. ./profile\n",
    "read in a function": "#!/bin/bash\nprepare() { source ./profile; srun echo ours; }\nprepare >&2\n. ./profile\n",
    "login of sh": "#!/bin/sh -l\n",
    "read by a script below": "#!/bin/bash\nexec bash below.sh\n",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how == "login" else pytest.mark.slow) for how in PROFILES]
)
def test_our_srun_is_found_whatever_a_profile_does(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A profile sets PATH anew, and another srun stands there."""
    (project / "system").mkdir()
    (project / "system" / "srun").write_text("#!/bin/sh\necho the srun of the system\nexit 9\n")
    (project / "system" / "srun").chmod(0o755)
    (project / "profile").write_text(f"PATH={project}/system:/usr/bin:/bin\nexport PATH\n")
    (project / ".profile").write_text(f"PATH={project}/system:/usr/bin:/bin\nexport PATH\n")
    (project / "theirs").write_text("SEEN=module-system\n")
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("BASH_ENV", str(project / "theirs"))
    rest = (
        'echo "theirs: ${SEEN-}" "arguments: $*"\nsrun -n2 echo plain\n'
        "(srun -n1 echo below; true)\ntimeout 60 srun -n1 echo timed\n"
        "srun -n1 echo waited & wait $! && exec srun -n1 echo last\n"
    )
    (project / "below.sh").write_text(f". ./profile\n{rest}")
    done = run(PROFILES[how].replace("\n", "\n#SBATCH -N2\n", 1) + rest, arguments=("a",))
    assert done.returncode == 0, done.stdout + done.stderr
    said = texts(done.stdout)
    assert [said.count(word) for word in ("plain", "below", "timed", "waited", "last")] == [
        2,
        1,
        1,
        1,
        1,
    ]
    assert "the srun of the system" not in done.stdout + done.stderr
    if how not in ("login of sh", "read by a script below"):
        assert "theirs: module-system arguments: a" in said
