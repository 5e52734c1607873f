"""The options of `srun` that a step across a gang can honour; all others are reported. Pure.

Three tables classify the options: those of a step, those without effect here (reported once on standard error), and
those that are refused, since the step would not do what was asked for.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import field

from ..quick_dataclass import dataclass
from . import hostlist
from .getopt import Option, OptionError, read
from .layout import StepRequest

_STEP = {
    "chdir": Option("D"),
    "distribution": Option("m"),
    "error": Option("e"),
    "export": Option(),
    "input": Option("i"),
    "jobid": Option(),
    "kill-on-bad-exit": Option("K", "optional"),
    "label": Option("l", "none"),
    "mpi": Option(),
    "nodelist": Option("w"),
    "nodes": Option("N"),
    "ntasks": Option("n"),
    "ntasks-per-node": Option(),
    "open-mode": Option(),
    "output": Option("o"),
    "tasks-per-node": Option(),
    "time": Option("t"),
    "wait": Option("W"),
}

_NOTHING_TO_DO = {
    "disable-status": Option("X", "none"),
    "exact": Option("", "none"),
    "exclusive": Option("", "optional"),
    "external-launcher": Option("", "none"),
    "immediate": Option("I", "optional"),
    "interactive": Option("", "none"),
    "job-name": Option("J"),
    "mem": Option(),
    "mem-per-cpu": Option(),
    "overcommit": Option("O", "none"),
    "overlap": Option("", "none"),
    "oversubscribe": Option("s", "none"),
    "quiet": Option("Q", "none"),
    "quit-on-interrupt": Option("", "none"),
    "threads": Option("T"),
    "treewidth": Option(),
    "unbuffered": Option("u", "none"),
    "verbose": Option("v", "none"),
    "whole": Option("", "none"),
}
"""Options that hold anyway, or ask for resources that the whole gang has: the steps of a script share its nodes."""

_WITHOUT_EFFECT = {
    **{
        name: Option()
        for name in (
            *("accel-bind", "acctg-freq", "comment", "cpu-bind", "cpu-freq", "cpus-per-gpu"),
            *("gpu-bind", "gpu-freq", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres"),
            *("gres-flags", "hint", "mail-type", "mail-user", "mem-bind", "mem-per-gpu", "mincpus"),
            *("network", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket", "power"),
            *("priority", "signal", "slurmd-debug", "sockets-per-node", "switches", "thread-spec"),
            *("threads-per-core", "tmp", "wckey", "cores-per-socket", "msg-timeout"),
            *(
                "bb",
                "bbf",
                "bcast-exclude",
                "cluster-constraint",
                "deadline",
                "delay-boot",
                "extra",
            ),
            *("mcs-label", "prefer", "segment", "time-min", "tres-bind", "tres-per-task"),
        )
    },
    **{
        name: Option("", "none")
        for name in (
            *("consolidate-segments", "contiguous", "reboot", "spread-job", "stepmgr"),
            "use-min-nodes",
        )
    },
    **{
        name: Option("", "optional")
        for name in ("compress", "oom-kill-step", "resv-ports", "send-libs", "x11")
    },
    "account": Option("A"),
    "core-spec": Option("S"),
    "constraint": Option("C"),
    "cpus-per-task": Option("c"),
    "extra-node-info": Option("B"),
    "gpus": Option("G"),
    "licenses": Option("L"),
    "nice": Option("", "optional"),
    "no-kill": Option("k", "optional"),
    "partition": Option("p"),
    "preserve-env": Option("E", "none"),
    "profile": Option(),
    "propagate": Option("", "optional"),
    "qos": Option("q"),
    "reservation": Option(),
}

_REFUSED = {
    "bcast": ("", "optional", "put the program where all nodes find it"),
    "begin": ("b", "needed", "the step starts when the script calls it"),
    "clusters": ("M", "needed", "there is no other cluster here"),
    "container": (
        "",
        "needed",
        "name an image with #SBATCH --container-image, or flow run --image",
    ),
    "container-id": ("", "needed", "a step runs in the image of the whole task"),
    "container-image": (
        "",
        "needed",
        "a step runs in the image of the whole task: #SBATCH --container-image, or flow run --image",
    ),
    "container-mounts": ("", "needed", "name volumes with flow run --volume"),
    "container-name": ("", "needed", "a step runs in the image of the whole task"),
    "container-workdir": ("", "needed", "use --chdir"),
    "dependency": ("d", "needed", "wait for the other step in the script"),
    "epilog": ("", "needed", "run it in the script, behind srun"),
    "exclude": ("x", "needed", "name the nodes that it may use with --nodelist"),
    "gid": ("", "needed", "tasks run as the user of the gang"),
    "het-group": ("", "needed", "a gang has nodes of one kind"),
    "hold": ("H", "none", "nobody could release it"),
    "multi-prog": ("", "none", "start a program that looks at SLURM_PROCID"),
    "no-allocate": ("Z", "none", "there is no Slurm to pass by"),
    "nodefile": ("F", "needed", "use --nodelist"),
    "prolog": ("", "needed", "run it in the script, before srun"),
    "relative": ("r", "needed", "name the nodes that it may use with --nodelist"),
    "pty": ("", "none", "for a terminal on a node: flow ssh TASK --node N"),
    "task-epilog": ("", "needed", "run it in the task's own command"),
    "task-prolog": ("", "needed", "run it in the task's own command"),
    "test-only": ("", "none", "use flow run --dry-run"),
    "uid": ("", "needed", "tasks run as the user of the gang"),
}

_TABLE: dict[str, Option] = {
    **_STEP,
    **_NOTHING_TO_DO,
    **_WITHOUT_EFFECT,
    **{name: Option(short, value) for name, (short, value, _) in _REFUSED.items()},
}
_MPI = "tasks do not find each other through PMI here: each would run alone; use distributed_mode='mpi'"
_PARTS = (
    "a step of several parts (a : b) cannot be honoured: give each part an srun of its own, or start a program that "
    "looks at SLURM_PROCID"
)
_ORDER = "tasks are numbered node after node (block), as the ranks of the gang are"
_ALL_INPUT, _NO_INPUT = "all", "none"


@dataclass(frozen=True, slots=True)
class SrunStep:
    """The parsed command line of one `srun`.

    Attributes:
        argv: The command of every task.
        export: What tasks get of the script's environment: "ALL", "NONE", or names and NAME=VALUE with commas.
        input: "all", "none", or the id of the one task that reads standard input.
        output, error: File names with Slurm's %-patterns; None for standard output and error of srun.
        kill_on_bad_exit: Whether the first task that fails ends the others.
        wait: Seconds that the other tasks have after the first one has ended; None for no limit.
        limit: Longest run in seconds.
        notes: Options without effect here.
    """

    argv: list[str] = field(default_factory=list)
    wish: StepRequest = field(default_factory=StepRequest)
    directory: str | None = None
    export: str = "ALL"
    input: str = _ALL_INPUT
    output: str | None = None
    error: str | None = None
    append: bool = False
    label: bool = False
    kill_on_bad_exit: bool = True
    wait: float | None = None
    limit: float | None = None
    notes: list[str] = field(default_factory=list)


def parse(
    words: Sequence[str], names: Sequence[str], job: str, environment: Mapping[str, str]
) -> SrunStep:
    """Parses a command line of `srun`.

    Args:
        names: The names of the gang's nodes.
        job: Its number.
        environment: Of the caller: Slurm's variables for srun replace options that are not given.

    Raises:
        OptionError: It cannot be honoured; the text says what to do.
    """
    given, argv, unknown = read(words, _TABLE)
    if unknown:
        raise OptionError(f"srun has no option {unknown[0]}")
    options = _from_environment(environment) | {each.name: each.value or "" for each in given}
    for name, (_, _, advice) in _REFUSED.items():
        if name in options:
            raise OptionError(f"--{name} cannot be honoured on this gang: {advice}")
    if not argv:
        raise OptionError("no command to run")
    if ":" in argv:
        raise OptionError(_PARTS)
    if options.get("mpi", "none") not in ("none", "list"):
        # A module of MPI may have set the variable for a program that does not use MPI.
        is_option = any(each.name == "mpi" for each in given)
        how = "--mpi" if is_option else "unset SLURM_MPI_TYPE unless it is meant; SLURM_MPI_TYPE"
        raise OptionError(f"{how}={options['mpi']}: {_MPI}")
    if not _is_block(options.get("distribution", "block")):
        raise OptionError(f"--distribution={options['distribution']}: {_ORDER}")
    if options.get("jobid", job) != job:
        raise OptionError(f"--jobid={options['jobid']}: this gang is job {job}, there is no other")
    without = sorted({f"--{each.name}" for each in given if each.name in _WITHOUT_EFFECT})
    note = (
        f"{', '.join(without)}: no effect on this gang, where all tasks of a node share what it has"
    )
    return SrunStep(
        argv=argv,
        wish=_wish(options, names),
        directory=options.get("chdir"),
        export=options.get("export", "ALL"),
        input=_input(options.get("input", _ALL_INPUT)),
        output=_file(options.get("output")),
        error=_file(options.get("error")),
        append=options.get("open-mode", "t").startswith("a"),
        label="label" in options,
        kill_on_bad_exit=options.get("kill-on-bad-exit", "1") not in ("0", "no", "off"),
        wait=_number("wait", options, 0) or None,
        limit=seconds(options["time"]) if "time" in options else None,
        notes=[note] if without else [],
    )


def refusals(words: Sequence[str]) -> list[str]:
    """Returns the reasons why a command line of `srun` cannot be honoured, as far as they are known before it runs."""
    try:
        given, argv, unknown = read(words, _TABLE)
    except OptionError as error:
        return [str(error)]
    found = [f"srun has no option {name}" for name in unknown]
    if ":" in argv:
        found.append(_PARTS)
    for each in given:
        if each.name in _REFUSED:
            found.append(f"--{each.name} cannot be honoured: {_REFUSED[each.name][2]}")
        elif each.name == "mpi" and each.value not in ("none", "list"):
            found.append(f"--mpi={each.value}: {_MPI}")
        elif each.name == "distribution" and not _is_block(each.value or ""):
            found.append(f"--distribution={each.value}: {_ORDER}")
    return found


def seconds(text: str) -> float | None:
    """Parses Slurm's times: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S. None for no limit. Raises OptionError."""
    if text.lower() in ("infinite", "unlimited", "-1"):
        return None
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise OptionError(f"{text!r} is not a time; write minutes, or D-HH:MM:SS")
    numbers = [int(part) for part in parts]
    if dash:
        numbers += [0] * (3 - len(numbers))
        total = int(days) * 86400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    elif len(numbers) == 3:
        total = numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    else:
        total = numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)
    return float(total) or None


def signal_number(text: str) -> int:
    """Parses USR1, SIGUSR1 or 10. Raises OptionError."""
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if text.isdecimal() and int(text) in set(signal.Signals):
        return int(text)
    if name in signal.Signals.__members__:
        return signal.Signals[name].value
    raise OptionError(f"{text!r} is no signal")


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Reads the options that scripts export for srun. SLURM_NTASKS and others describe the job, the default anyway."""
    names = {
        "SLURM_EXPORT_ENV": "export",
        "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
        "SLURM_MPI_TYPE": "mpi",
        "SLURM_OPEN_MODE": "open-mode",
        "SLURM_STDERRMODE": "error",
        "SLURM_STDINMODE": "input",
        "SLURM_STDOUTMODE": "output",
        "SLURM_TIMELIMIT": "time",
        "SLURM_WAIT": "wait",
        "SLURM_WORKING_DIR": "chdir",
        "SRUN_EXPORT_ENV": "export",
    }
    found = {option: environment[name] for name, option in names.items() if environment.get(name)}
    if environment.get("SLURM_LABELIO", "0") not in ("0", ""):
        found["label"] = ""
    return found


def _wish(options: Mapping[str, str], names: Sequence[str]) -> StepRequest:
    nodes = options.get("nodes")
    per_node = _number("ntasks-per-node", options, 1) or _number("tasks-per-node", options, 1)
    return StepRequest(
        nodes=_nodes(nodes) if nodes is not None else None,
        tasks=_number("ntasks", options, 1),
        per_node=per_node,
        within=tuple(_ranks(options["nodelist"], names)) if "nodelist" in options else None,
    )


def _is_block(distribution: str) -> bool:
    """Whether a distribution fills node after node. How cores are shared within a node has no effect here."""
    return distribution.split(":")[0].split(",")[0].lower() in ("block", "*")


def _nodes(text: str) -> int:
    """Returns the minimum of `4` or `2-4`."""
    least, _, most = text.partition("-")
    if not least.isdecimal() or not int(least) or (most and not most.isdecimal()):
        raise OptionError(f"--nodes={text}: give a number, as in --nodes=2")
    return int(least)


def _ranks(text: str, names: Sequence[str]) -> list[int]:
    try:
        hosts = hostlist.expand(text)
    except hostlist.HostlistError as error:
        raise OptionError(f"--nodelist={text}: {error}") from None
    if not hosts:
        raise OptionError("--nodelist: it names no node")
    missing = [host for host in hosts if host not in names]
    if missing:
        raise OptionError(
            f"--nodelist={text}: {missing[0]} is no node of this gang; it has {', '.join(names)}"
        )
    return [names.index(host) for host in hosts]


def _input(text: str) -> str:
    if not (text in (_ALL_INPUT, _NO_INPUT) or text.isdecimal()):
        raise OptionError(
            f"--input={text}: give all, none, or the number of a task; use < for files"
        )
    return text


def _file(text: str | None) -> str | None:
    if text is None or text == "all":
        return None
    if text.isdecimal():
        raise OptionError(f"the output of task {text} alone cannot be had; give a file, or all")
    return "/dev/null" if text == "none" else text


def _number(name: str, options: Mapping[str, str], least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise OptionError(f"--{name}={text}: give a whole number, {least} or more")
    return int(text)
