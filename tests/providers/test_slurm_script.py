"""The batch script is a pure function of what is to be run; what it comes to is kept in `golden/`.

`python -m tests.providers.test_slurm_script` writes those files anew.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from flowlite.connect.programs import UNSAFE
from provider_adapters.slurm.launching import packed
from provider_adapters.slurm.script import WAIT, Script, StepWrapper, render

GOLDEN = Path(__file__).with_name("golden")
SHA = "0" * 64
PLAIN = Script(
    name="flow-tabc",
    comment="flowlite:0123456789abcdef:tabc:tabc-launch-1-1-00000000",
    nodes=2,
    node_dir="/tmp/flowlite-slurm-1000",
    program=SHA,
    lease=300.0,
)
FULL = Script(
    name="flow-tfull",
    comment="flowlite:0123456789abcdef:tfull:tfull-launch-1-1-00000000",
    nodes=16,
    node_dir="/local/flow",
    program=SHA,
    lease=420.0,
    cpus=64,
    options=(
        ("partition", "gpu,big"),
        ("account", "physics"),
        ("qos", "high"),
        ("constraint", "a100&ib|h100"),
        ("reservation", "course"),
        ("gres", "lustre:1"),
        ("gpus-per-node", "a100:8"),
        ("mem", "0"),
        ("exclusive", ""),
        ("nodelist", "gpu[01-16]"),
        ("exclude", "gpu07"),
    ),
    extra=("--licenses=abaqus:1", "--mail-type=END"),
    minutes=723,
    signal_seconds=90,
    requeue=False,
    shared="/users/ada/.flowlite-slurm",
    nonce="0011223344556677",
    python="/opt/python/bin/python3 python3.11",
    deadline=43360.0,
)
EMBEDDED = Script(
    name="flow-temb",
    comment="flowlite:0123456789abcdef:temb:temb-launch-1-1-00000000",
    nodes=1,
    node_dir="/tmp/flowlite-slurm-1000",
    program=SHA,
    lease=300.0,
    embedded=packed(b"what the program is made of " * 8),
    shared="/users/ada/.flowlite-slurm",
    nonce="0011223344556677",
)
ARRAY = Script(
    name="flow-tarr",
    comment="flowlite:0123456789abcdef:tarr:tarr-launch-1-1-00000000",
    nodes=1,
    node_dir="/tmp/flowlite-slurm-1000",
    program=SHA,
    lease=300.0,
    array="0-4%2",
    wrap=StepWrapper(
        srun=("--container-image=nvcr.io#nvidia/pytorch:24.01-py3",), command=("nice",)
    ),
)

ELASTIC = Script(
    name="flow-tela",
    comment="flowlite:0123456789abcdef:tela:tela-launch-1-1-00000000",
    nodes=8,
    fewest=2,
    node_dir="/tmp/flowlite-slurm-1000",
    program=SHA,
    lease=300.0,
    cpus=4,
)


SCRIPTS = {
    "plain": PLAIN,
    "full": FULL,
    "embedded": EMBEDDED,
    "array": ARRAY,
    "elastic": ELASTIC,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_as_they_were(name: str) -> None:
    assert render(SCRIPTS[name]) == (GOLDEN / f"slurm_{name}.sbatch").read_text()


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_bash_and_sh_can_read_them(script: Script) -> None:
    text = render(script)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    node = text.partition("node='")[2].partition("\n'\n")[0].replace("'\\''", "'")
    assert subprocess.run(["sh", "-n"], input=node, text=True, check=False).returncode == 0


def test_every_option_stands_in_front_of_the_first_command() -> None:
    lines = render(FULL).splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    # The user's own come last, and win.
    assert options[-2:] == list(FULL.extra)
    # An expression with `&` and `|` stays one word.
    assert "--constraint=a100&ib|h100" in [shlex.split(option)[0] for option in options]


# What each node does, played by /bin/sh with a stand-in for Slurm


def play(tmp_path: Path, script: Script, daemon: str = "print('started', *sys.argv[1:])") -> str:
    """What one node's step prints, or the exit status of the script."""
    program = tmp_path / "program.py"
    program.write_text(f"import sys\n{daemon}\n")
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    # The words up to `sh` are for Slurm; then comes what each node does.
    (tools / "srun").write_text(
        '#!/bin/bash\nwhile [ "$1" != sh ]; do shift; done\nSLURM_NODEID=0 exec "$@"\n'
    )
    (tools / "srun").chmod(0o755)
    if not (tmp_path / "comment").exists():
        (tmp_path / "comment").write_text(script.comment)
    (tools / "scontrol").write_text(
        f"""#!/bin/sh
        if [ "$1" = -o ]; then echo "JobId=$4 Comment=$(cat {tmp_path}/comment) StdErr=/dev/null"; exit; fi
        printf "%s\\n" "$@" >{tmp_path}/scontrol
        printf %s "${{3#comment=}}" >{tmp_path}/comment
        """
    )
    (tools / "scontrol").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n3",
    }
    done = subprocess.run(
        ["bash"], input=render(script), text=True, env=environment, capture_output=True, check=False
    )
    return done.stdout.strip() if not done.returncode else str(done.returncode)


def made(tmp_path: Path, **changes: object) -> Script:
    import hashlib
    from dataclasses import replace

    content = b"import sys\nprint('started', *sys.argv[1:])\n"
    base = replace(
        EMBEDDED,
        node_dir=str(tmp_path / "node"),
        shared=str(tmp_path / "shared"),
        program=hashlib.sha256(content).hexdigest(),
        embedded=packed(content),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_program_comes_with_the_script_where_nothing_is_shared(tmp_path: Path) -> None:
    script = made(tmp_path)
    said = play(tmp_path, script)
    assert said.startswith(f"started step-daemon --dir {tmp_path}/node --lease 300 --deadline 0")
    assert (tmp_path / "node" / "blobs" / script.program).is_file()
    home = tmp_path / "node" / "7.00.00000"
    assert (home / "python").read_text().startswith("/")
    assert home.stat().st_mode & 0o777 == 0o700


def test_the_program_is_taken_from_the_shared_directory_where_it_is_there(tmp_path: Path) -> None:
    content = b"import sys\nprint('started', *sys.argv[1:])\n"
    script = made(tmp_path, embedded="")
    blob = tmp_path / "shared" / "blobs" / script.program
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    assert play(tmp_path, script).startswith("started step-daemon")


def test_a_program_that_was_changed_on_the_way_is_not_run(tmp_path: Path) -> None:
    assert play(tmp_path, made(tmp_path, embedded=packed(b"print('evil')"))) == "103"


def test_a_shared_directory_that_is_not_there_any_more_is_told(tmp_path: Path) -> None:
    assert play(tmp_path, made(tmp_path, embedded="")) == "104"


def noted(tmp_path: Path, script: Script, code: int = UNSAFE) -> str:
    """What a node has added to the comment of its job, after its exit code."""
    command, job, comment = (tmp_path / "scontrol").read_text().splitlines()
    assert (command, job) == ("update", "jobid=7")
    own, added, said = comment.removeprefix("comment=").split(" ", 2)
    assert (own, added) == (script.comment, str(code))
    return said


def test_the_first_node_that_refuses_is_the_one_that_is_told(tmp_path: Path) -> None:
    """`srun` then ends what the others wait for, and they refuse as well."""
    (tmp_path / "node").write_text("a file")
    script = made(tmp_path)
    assert play(tmp_path, script) == "102"
    first = noted(tmp_path, script, 102)
    (tmp_path / "node").unlink()
    assert play(tmp_path, made(tmp_path, embedded=packed(b"cut off"))) == "103"
    assert noted(tmp_path, script, 102) == first


def test_a_node_dir_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("a file")
    script = made(tmp_path)
    assert play(tmp_path, script) == "102"
    said = noted(tmp_path, script, 102)
    assert said.startswith("n3: mkdir: ")
    assert f"{tmp_path}/node" in said


@pytest.mark.needs("root")
@pytest.mark.parametrize("what", ["directory", "link", "file", "home"])
def test_what_another_user_has_planted_is_named_with_its_node(tmp_path: Path, what: str) -> None:
    above = tmp_path / "tmp"
    above.mkdir()
    above.chmod(0o1777)
    planted = above / "flowlite"
    if what == "directory":
        planted.mkdir(mode=0o700)
    elif what == "link":
        (tmp_path / "own").mkdir()
        planted.symlink_to(tmp_path / "own")
    elif what == "file":
        planted.write_text("")
    else:
        planted = planted / "7.00.00000"
        planted.mkdir(parents=True)
        planted.parent.chmod(0o1777)
    os.chown(planted, 65534, -1, follow_symlinks=False)
    script = made(tmp_path, node_dir=str(above / "flowlite"))
    code = 102 if what == "file" else UNSAFE
    assert play(tmp_path, script) == str(code)
    said = noted(tmp_path, script, code)
    assert said.startswith("n3: ")
    assert str(planted) in said
    assert what == "file" or said.endswith(f"{planted} belongs to uid 65534")


def test_a_node_dir_that_others_can_write_is_not_repaired(tmp_path: Path) -> None:
    """Others may have put something there."""
    node = tmp_path / "node"
    node.mkdir()
    node.chmod(0o777)
    script = made(tmp_path)
    assert play(tmp_path, script) == str(UNSAFE)
    assert noted(tmp_path, script) == f"n3: {node} can be written by others (mode 777)"
    assert node.stat().st_mode & 0o777 == 0o777


def test_what_is_exported_to_the_job_does_not_leave_its_step_without_a_path(tmp_path: Path) -> None:
    # With it, `srun` passes on only these variables, and does not find `sh` on the nodes.
    script = render(made(tmp_path, extra=("--export=NONE",)))
    (tmp_path / "srun").write_text('#!/bin/sh\necho "exports ${SLURM_EXPORT_ENV-all}"\n')
    (tmp_path / "srun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_EXPORT_ENV": "NONE"}
    done = subprocess.run(
        ["bash"], input=script, text=True, env=environment, capture_output=True, check=False
    )
    assert done.stdout == "exports all\n"


def test_the_exit_code_of_the_step_is_that_of_the_job(tmp_path: Path) -> None:
    import hashlib

    content = b"raise SystemExit(7)\n"
    script = made(tmp_path, program=hashlib.sha256(content).hexdigest(), embedded=packed(content))
    assert play(tmp_path, script) == "7"


def test_a_warning_from_slurm_is_passed_on_to_the_step_daemon_of_this_node(tmp_path: Path) -> None:
    import hashlib

    content = b"""\
import os, signal, sys, time
home = sys.argv[sys.argv.index("--dir") + 1] + "/7.00.00000"
came = []
signal.signal(signal.SIGUSR2, lambda *_: came.append(1))
open(home + "/step-daemon.pid", "w").write(str(os.getpid()))
os.kill(int(os.environ["BATCH"]), signal.SIGUSR2)
while not came:
    signal.pause()
print("warned")
# Bash 5.2 loses the status of a process that ends in the very moment in which a signal ends `wait`.
time.sleep(0.5)
"""
    script = made(tmp_path, program=hashlib.sha256(content).hexdigest(), embedded=packed(content))
    # The shell of the batch script, as Slurm's slurmstepd would signal it.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(
        '#!/bin/bash\nwhile [ "$1" != sh ]; do shift; done\nBATCH=$PPID SLURM_NODEID=0 exec "$@"\n'
    )
    (tools / "srun").chmod(0o755)
    path = tmp_path / "job.sh"
    path.write_text(render(script))
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "7",
    }
    done = subprocess.run(["bash", str(path)], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"warned")


@pytest.mark.needs("root")
@pytest.mark.parametrize("how", ["theirs", "open"])
def test_nothing_runs_from_a_directory_of_a_node_that_others_write(
    tmp_path: Path, how: str
) -> None:
    above = tmp_path / "scratch"
    node_dir = above / "flowlite"
    home = node_dir / "7.00.00000"
    home.mkdir(parents=True)
    # What waits for the step daemon of a node reads there which Python to run.
    (home / "python").write_text(f"{tmp_path}/planted\n")
    (home / "step-daemon.json").write_text("{}")
    (tmp_path / "planted").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "planted").chmod(0o755)
    if how == "open":
        above.chmod(0o777)
    else:
        os.chown(above, 65534, -1)
    assert play(tmp_path, made(tmp_path, node_dir=str(node_dir))) == str(UNSAFE)
    words = ["sh", "-c", WAIT, "sh", str(home), "python3", "-c", "pass"]
    assert subprocess.run(words, check=False, timeout=90).returncode == UNSAFE
    assert not (tmp_path / "ran").exists()


if __name__ == "__main__":
    for each, value in SCRIPTS.items():
        (GOLDEN / f"slurm_{each}.sbatch").write_text(render(value))
