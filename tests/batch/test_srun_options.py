"""What `srun` is told inside a batch script."""

from __future__ import annotations

import shlex

import pytest

from flowlite.node.sbatch.getopt import OptionError
from flowlite.node.sbatch.layout import StepRequest
from flowlite.node.sbatch.srun_options import SrunStep, parse, refusals, seconds

NAMES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def step(line: str, **environment: str) -> SrunStep:
    return parse(shlex.split(line), NAMES, "1234567", environment)


def test_the_guides_line() -> None:
    found = step("--cpu_bind=v --accel-bind=gn python -u train.py --nodes 3 -n 5")
    assert found.argv == ["python", "-u", "train.py", "--nodes", "3", "-n", "5"]
    assert found.wish == StepRequest()
    (note,) = found.notes
    assert note.startswith("--accel-bind, --cpu-bind: no effect")
    assert found.kill_on_bad_exit
    assert found.export == "ALL"


@pytest.mark.parametrize(
    ("line", "wish"),
    [
        ("-N2 -n 4 x", StepRequest(nodes=2, tasks=4)),
        ("--nodes=1-3 x", StepRequest(nodes=1)),
        ("--ntasks-per-node=1 x", StepRequest(per_node=1)),
        ("-w 10.0.0.3,10.0.0.1 x", StepRequest(within=(2, 0))),
        ("-m block:cyclic x", StepRequest()),
    ],
)
def test_where_it_runs(line: str, wish: StepRequest) -> None:
    assert step(line).wish == wish


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--pty bash", "flow ssh TASK"),
        ("--mpi=pmix ./a.out", "each would run alone"),
        ("--multi-prog x.conf", "cannot be honoured"),
        ("--container-image=ubuntu x", "image of the whole task"),
        ("--jobid=7 hostname", "this gang is job 1234567"),
        ("-w node7 x", "node7 is no node of this gang; it has 10.0.0.1"),
        ("-n many x", "give a whole number"),
        ("-n 0 x", "--ntasks=0: give a whole number, 1 or more"),
        ("--ntasks-per-node=0 x", "--ntasks-per-node=0: give a whole number, 1 or more"),
        ("--bogus x", "no option --bogus"),
        ("-N2", "no command to run"),
        ("--exclude=10.0.0.[1-2] x", "--exclude cannot be honoured on this gang"),
        ("-r1 x", "use with --nodelist"),
        ("-m cyclic x", "numbered node after node"),
        ("--nodelist= x", "names no node"),
        ("--output=3 x", "the output of task 3 alone"),
        ("-i /data/in x", "use < for files"),
        ("-t soon x", "is not a time"),
        ("-N1 x : -N1 y", "several parts"),
    ],
)
def test_what_cannot_be_honoured_is_refused(line: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        step(line)
    assert message in str(raised.value)


def test_streams_and_ends() -> None:
    found = step("-l -o out-%t.txt -e err.txt --open-mode=append -K0 -W 30 -t 1:30 -i none x")
    assert (found.label, found.append, found.kill_on_bad_exit) == (True, True, False)
    assert (found.output, found.error, found.input) == ("out-%t.txt", "err.txt", "none")
    assert (found.wait, found.limit) == (30.0, 90.0)
    assert step("--output=none x").output == "/dev/null"
    assert step("--export=NONE x").export == "NONE"
    assert step("--export=ALL,A=1 x").export == "ALL,A=1"


def test_what_scripts_export_to_srun() -> None:
    found = step("x", SLURM_KILL_BAD_EXIT="0", SLURM_LABELIO="1", SLURM_WAIT="5")
    assert (found.kill_on_bad_exit, found.label, found.wait) == (False, True, 5.0)
    assert step("-K x", SLURM_KILL_BAD_EXIT="0").kill_on_bad_exit
    streams = {"SLURM_STDOUTMODE": "o", "SLURM_STDERRMODE": "e", "SLURM_STDINMODE": "none"}
    found = step("x", **streams, SLURM_OPEN_MODE="a", SLURM_TIMELIMIT="5", SLURM_WORKING_DIR="/d")
    assert (found.output, found.error, found.input, found.append) == ("o", "e", "none", True)
    assert (found.limit, found.directory) == (300.0, "/d")
    assert not step("--open-mode=truncate x", SLURM_OPEN_MODE="a").append
    both = {"SLURM_EXPORT_ENV": "ALL", "SRUN_EXPORT_ENV": "NONE"}
    assert step("x", **both).export == "NONE"
    with pytest.raises(OptionError, match=r"unset SLURM_MPI_TYPE .*=pmix.* each would run alone"):
        step("x", SLURM_MPI_TYPE="pmix")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 300.0),
        ("5:30", 330.0),
        ("1:00:00", 3600.0),
        ("7-00:00:00", 604800.0),
        ("1-12", 129600.0),
        ("1-0:30", 88200.0),
        ("UNLIMITED", None),
        ("0", None),
    ],
)
def test_times(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "1:2:3:4", "a", "-", "1-", "-5:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(OptionError, match="is not a time"):
        seconds(text)


@pytest.mark.parametrize(
    "option",
    [
        *("--resv-ports", "--resv-ports=4", "-E", "--preserve-env", "--whole", "--interactive"),
        *(
            "--external-launcher",
            "--tres-per-task=cpu:2",
            "--tres-bind=gres/gpu:none",
            "--compress",
        ),
        *("--use-min-nodes", "--contiguous", "--spread-job", "--send-libs=no", "--deadline=now"),
        *("--bcast-exclude=NONE", "--mcs-label=x", "--time-min=1", "--delay-boot=1", "--reboot"),
        *("--treewidth=2", "--stepmgr", "--segment=2", "--prefer=x", "--oom-kill-step=0", "--x11"),
    ],
)
def test_options_that_srun_has(option: str) -> None:
    assert step(f"{option} -n1 x").argv == ["x"]
    assert refusals([option, "-n1", "x"]) == []


def test_refusals_are_seen_before_anything_runs() -> None:
    assert refusals(["-N", "$N", "--pty", "bash"]) == [
        "--pty cannot be honoured: for a terminal on a node: flow ssh TASK --node N"
    ]
    assert refusals(["--mpi=pmi2", "x"])[0].startswith("--mpi=pmi2")
    assert refusals(["-m", "cyclic", "x"])[0].startswith("--distribution=cyclic: tasks are")
    assert refusals(["--cpu-bind=none", "-n", "$((N * 2))", "x", "--pty"]) == []
