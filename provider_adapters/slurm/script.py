"""Renders the batch script. Pure.

A job has one step: `srun` starts a small shell program on each node, which finds a Python, installs flowlite's program
and becomes the node's step daemon (`node/slurm_step/daemon.py`). The step daemons start agents and workers, so that all
of them belong to that step.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import field

from flowlite.connect.programs import SAFE_IN_SHELL, UNSAFE
from flowlite.node.quick_dataclass import dataclass

# Waits for the step daemon of a node, then becomes the Python that the step daemon runs in. The name of a Python comes
# before its arguments and is replaced, since that Python is not known beforehand.
WAIT = (
    f'{SAFE_IN_SHELL}safe "$1" || exit {UNSAFE}; '
    'h=$1; shift 2; i=0; until [ -s "$h/step-daemon.json" ] || [ $i -ge 600 ]; do sleep 0.1; i=$((i+1)); done; '
    'read -r p <"$h/python" || exit 105; exec "$p" "$@"'
)
_MARK = "FLOWLITE_PROGRAM"
# The job ends when it ends.
_FOLLOW = """\
step=$!
while :; do
  wait "$step"; code=$?
  # A signal ends `wait`, and not the step.
  kill -0 "$step" 2>/dev/null || break
done
exit $code"""
# What each node runs before Python. The arguments come from `_arguments`; exit codes are in `queries/state_words.py`.
_NODE = f"""\
{SAFE_IN_SHELL}""" + """\
dir=$1 sha=$2 shared=$3 proved=$4 asked=$5 comment=$6; shift 6
mask=$(umask)
umask 077
# The comment of the job is all that Slurm still shows of this node when the job is over: `srun` ends the other nodes,
# and exits with the code of one of those. It has to be one line.
refuse() {
  why=${SLURMD_NODENAME:-$(uname -n)}${2:+: $(printf %s "$2" | tail -n 1 | tr -cd "[:print:]")}
  echo "flowlite: $why" >&2
  # If another node has refused the job, `srun` may have ended a program that this node was waiting for.
  case $(timeout 20 scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null) in
    *"Comment=$comment "[0-9]*) ;;
    *) timeout 20 scontrol update "jobid=$SLURM_JOB_ID" "comment=$comment $1 $why" >/dev/null 2>&1;;
  esac
  exit "$1"
}
protected() { why=$(safe "$1" 2>&1) || refuse @UNSAFE@ "$why"; }
made() { why=$(mkdir -p "$1" 2>&1) || refuse 102 "$why"; }
protected "$dir"
made "$dir/blobs"
# After it was made: before that, another user could have made it.
protected "$dir/blobs"
why=$(chmod 700 "$dir" "$dir/blobs" 2>&1) || refuse 102 "$why"
program=$dir/blobs/$sha
whole() { [ -s "$1" ] && [ "$(sha256sum <"$1")" = "$sha  -" ]; }
if ! whole "$program"; then
  part=$program.$$
  if whole "$shared/blobs/$sha"; then why=$(cp "$shared/blobs/$sha" "$part" 2>&1)
  elif [ "$proved" = yes ]; then refuse 104 "$shared/blobs/$sha is not there, or not whole"
  else why=$( { base64 -d 2>/dev/null | gzip -dc >"$part"; } 2>&1); fi
  # Of a disk that is full, not even the rest is left.
  whole "$part" && mv "$part" "$program" || { rm -f "$part"; refuse 103 "$program${why:+: $why}"; }
fi
ask='import sys; sys.version_info < (3, 11) and sys.exit(1); print(sys.executable)'
for p in $asked python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3 /usr/local/bin/python3 \\
    "$HOME"/.pyenv/versions/*/bin/python3 "$HOME"/miniconda3/bin/python3 "$HOME"/miniforge3/bin/python3 \\
    "$HOME"/.local/share/uv/python/*/bin/python3 /opt/*/bin/python3; do
  found=$("$p" -I -S -c "$ask" </dev/null 2>/dev/null) && break
  found=
done
[ -n "$found" ] || refuse 101
home=$dir/$(printf '%s.%02d.%05d' "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURM_NODEID")
made "$home"
protected "$home"
why=$( { printf '%s\\n' "$found" >"$home/python"; } 2>&1) || refuse 102 "$why"
umask "$mask"
exec "$found" -I -S "$program" step-daemon --dir "$dir" "$@" </dev/null
""".replace("@UNSAFE@", str(UNSAFE))


@dataclass(frozen=True, slots=True)
class StepWrapper:
    """What the step runs in, such as a container.

    Attributes:
        srun: Additional arguments of `srun`.
        command: Words before the command of each node.
    """

    srun: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The values of a batch script.

    Attributes:
        name: The job's name, for people.
        comment: The job's comment, by which it is found again.
        nodes: Number of nodes.
        fewest: With how many nodes the job is content, fewer than `nodes`; 0 if it needs all.
        cpus: Cores on each node; None for Slurm's default.
        options: Additional options of `sbatch` with their values; "" for an option without a value.
        extra: Options of `sbatch` as the user wrote them.
        minutes: Time limit; None for that of the partition.
        least_minutes: The time limit with which the job is content, if Slurm can start it earlier then; None for
            `minutes`.
        signal_seconds: How long before its end the job is warned.
        requeue: Whether the job is requeued after a preemption or the failure of a node.
        program: SHA-256 of flowlite's program.
        embedded: The program itself, gzip and base64; "" if the shared directory is known to be shared.
        shared: The shared directory; "" for none.
        nonce: Content of the probe file in the shared directory.
        python: A Python of the nodes to try first; "" for none.
        lease: Seconds without contact after which step daemons end.
        deadline: Seconds after which step daemons end; 0 for no limit.
        array: The value of `--array`; "" for a job that is no array.
    """

    name: str
    comment: str
    nodes: int
    node_dir: str
    program: str
    lease: float
    cpus: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    extra: tuple[str, ...] = ()
    minutes: int | None = None
    least_minutes: int | None = None
    signal_seconds: int = 120
    requeue: bool = True
    fewest: int = 0
    embedded: str = ""
    shared: str = ""
    nonce: str = ""
    python: str = ""
    deadline: float = 0.0
    array: str = ""
    wrap: StepWrapper = field(default_factory=StepWrapper)


def render(script: Script) -> str:
    """The script for `sbatch`."""
    lines = ["#!/bin/bash", *(f"#SBATCH {each}" for each in _directives(script)), ""]
    lines += ["# What each node does until it is flowlite's.", f"node={_quoted(_NODE)}", ""]
    # Of `--export=NONE`, or a list: the step, and so the workers, would not even have a PATH.
    lines += ["unset SLURM_EXPORT_ENV", ""]
    lines += _notice(script)
    lines.append(_step(script))
    if script.embedded:
        lines += [script.embedded, _MARK]
    lines.append(_FOLLOW)
    return "\n".join(lines) + "\n"


def _directives(script: Script) -> list[str]:
    """The options of `sbatch`, in a fixed order. Those that the user wrote come last and take precedence."""
    found = [
        f"--job-name={script.name}",
        f"--comment={script.comment}",
        *_size(script),
    ]
    found += [f"--cpus-per-task={script.cpus}"] if script.cpus else []
    found += [
        f"--{name}={_value(value)}" if value else f"--{name}" for name, value in script.options
    ]
    found += [f"--time={script.minutes}"] if script.minutes else []
    found += [f"--time-min={script.least_minutes}"] if script.least_minutes else []
    found += [f"--array={script.array}"] if script.array else []
    found += [
        "--requeue" if script.requeue else "--no-requeue",
        f"--signal=B:USR2@{script.signal_seconds}",
        "--chdir=/",
        f"--output={_output(script)}",
        "--open-mode=append",
    ]
    return [*found, *script.extra]


def _size(script: Script) -> list[str]:
    if not script.fewest:
        return [f"--nodes={script.nodes}", f"--ntasks={script.nodes}", "--ntasks-per-node=1"]
    # With a number of tasks, Slurm gives no more nodes than those tasks need, which are the fewest.
    return [f"--nodes={script.fewest}-{script.nodes}", "--no-kill"]


def _output(script: Script) -> str:
    # A job whose output cannot be written fails at once, so output is requested only if the directory is known to be
    # writable.
    name = "%A_%a" if script.array else "%j"
    return (
        f"{script.shared}/output/{name}.txt"
        if script.shared and not script.embedded
        else "/dev/null"
    )


def _notice(script: Script) -> list[str]:
    """Passes Slurm's warning on to the step daemon of this node; Slurm warns only the batch shell, not the step."""
    return [
        f"home={shlex.quote(script.node_dir)}/$(printf '%s.%02d.00000' \"$SLURM_JOB_ID\" "
        '"${SLURM_RESTART_COUNT:-0}")',
        'trap \'kill -USR2 "$(cat "$home/step-daemon.pid")"\' USR2',
        "",
    ]


def _step(script: Script) -> str:
    begin = ["srun", "--kill-on-bad-exit=1", "--wait=0", "--overlap", "--cpu-bind=none"]
    # Like the job, its step goes on without a node that failed.
    begin += ["--no-kill"] if script.fewest else []
    # A job that may have fewer nodes learns from Slurm how many it has, in each of its runs.
    size = '"$SLURM_JOB_NUM_NODES"' if script.fewest else str(script.nodes)
    end = [
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={script.cpus}"] if script.cpus else []),
        *script.wrap.srun,
        *script.wrap.command,
        *("sh", "-c"),
    ]
    command = f"{shlex.join(begin)} --nodes={size} --ntasks={size} {shlex.join(end)}"
    arguments = " ".join(shlex.quote(each) for each in _arguments(script))
    feed = f"<<'{_MARK}'" if script.embedded else "</dev/null"
    return f'{command} "$node" flowlite \\\n  {arguments} \\\n  {feed} &'


def _arguments(script: Script) -> Sequence[str]:
    proved = "yes" if script.shared and not script.embedded else "no"
    daemon = [
        *("--lease", f"{script.lease:.0f}", "--deadline", f"{script.deadline:.0f}"),
        *("--signal-seconds", str(script.signal_seconds)),
        *(("--shared", script.shared, "--nonce", script.nonce) if script.shared else ()),
        *(("--cancel", "yes") if script.fewest else ()),
    ]
    shared = script.shared or "/nonexistent"
    wanted = [script.node_dir, script.program, shared, proved, script.python, script.comment]
    return [*wanted, *daemon]


def _value(value: str) -> str:
    """A value on an `#SBATCH` line, which Slurm splits like a shell."""
    return value if shlex.quote(value) == value else f'"{value}"'


def _quoted(text: str) -> str:
    """A text in single quotes over several lines, to stay readable."""
    return "'" + text.replace("'", "'\\''") + "'"
