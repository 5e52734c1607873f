"""All options of sbatch (22.05 to 25.05), by how they are handled. Other options are unknown."""

from __future__ import annotations

from flowlite.node.sbatch.getopt import Option

HONOURED: dict[str, Option] = {
    "array": Option("a"),
    "chdir": Option("D"),
    "container-image": Option(),
    "cpus-per-gpu": Option(),
    "cpus-per-task": Option("c"),
    "export": Option(),
    "gpus": Option("G"),
    "gpus-per-node": Option(),
    "gpus-per-task": Option(),
    "gres": Option(),
    "job-name": Option("J"),
    "mem": Option(),
    "mem-per-cpu": Option(),
    "mem-per-gpu": Option(),
    "nodes": Option("N"),
    "ntasks": Option("n"),
    "ntasks-per-gpu": Option(),
    "ntasks-per-node": Option(),
    "signal": Option(),
    "tasks-per-node": Option(),
    "time": Option("t"),
}
"""Options that become options of the task, or variables of the script."""

HOLDS: dict[str, Option] = {
    "ignore-pbs": Option("", "none"),
    "kill-on-invalid-dep": Option(),
    "parsable": Option("", "none"),
    "quiet": Option("Q", "none"),
    "verbose": Option("v", "none"),
    "wait": Option("W", "none"),
    "wait-all-nodes": Option(),
}
"""Options that a gang fulfils anyway, or that only change how sbatch itself behaves."""

FILES: dict[str, Option] = {
    "error": Option("e"),
    "open-mode": Option(),
    "output": Option("o"),
}
"""Options that say where output is written; `flow logs` has it."""

REFUSED: dict[str, tuple[str, str, str]] = {
    "begin": ("b", "needed", "it would start at once"),
    "deadline": ("", "needed", "nothing would end it then; use --time"),
    "dependency": ("d", "needed", "it would start before the job it depends on has ended"),
    "export-file": (
        "",
        "needed",
        "its variables would be missing; use --export, or flow run --env",
    ),
    "gid": ("", "needed", "it would run with another group"),
    "hold": ("H", "none", "it would start at once"),
    "input": ("i", "needed", "the script would read nothing; let it read the file itself"),
    "nodefile": ("F", "needed", "it would run on other nodes"),
    "test-only": ("", "none", "it would run; use flow run --dry-run"),
    "uid": ("", "needed", "it would run as somebody else"),
    "wrap": ("", "needed", "a script wraps nothing"),
}
"""Options that are refused, since the script would not do what they ask for: (short name, value, why)."""

OF_THE_QUEUE = frozenset({"begin", "deadline", "dependency", "hold"})
"""Refused options that a cluster's queue can fulfil."""

OF_THE_STEP = frozenset(
    {"comment", "cores-per-socket", "distribution", "extra-node-info", "mincpus", "ntasks-per-core"}
    | {"ntasks-per-socket", "overcommit", "threads-per-core", "tres-per-task"}
)
"""Options that even a cluster cannot fulfil, since a gang has one Slurm task per node and is found by its comment."""

KEYS: dict[str, str] = {
    "account": "account",
    "constraint": "constraint",
    "exclude": "exclude",
    "exclusive": "exclusive",
    "nodelist": "nodelist",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
}
"""Cluster options that are settings of the Slurm provider, with their names there."""

CLUSTER: dict[str, Option] = {
    **{
        name: Option()
        for name in (
            *("acctg-freq", "batch", "bb", "bbf", "cluster-constraint", "comment", "container"),
            *("container-id", "container-mounts", "container-mount-home", "container-name"),
            *("container-save", "container-workdir", "container-writable"),
            *("cores-per-socket", "cpu-freq", "delay-boot", "extra", "gpu-bind", "gpu-freq"),
            *("gpus-per-socket", "gres-flags", "hint", "mail-type", "mail-user", "mcs-label"),
            *("mem-bind", "mincpus", "network", "ntasks-per-core", "ntasks-per-socket", "power"),
            *("prefer", "priority", "profile", "reservation", "segment", "sockets-per-node"),
            *("switches", "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind"),
            *("tres-per-task", "wckey"),
        )
    },
    "account": Option("A"),
    "clusters": Option("M"),
    "constraint": Option("C"),
    "consolidate-segments": Option("", "none"),
    "contiguous": Option("", "none"),
    "core-spec": Option("S"),
    "distribution": Option("m"),
    "exclude": Option("x"),
    "exclusive": Option("", "optional"),
    "extra-node-info": Option("B"),
    "get-user-env": Option("", "optional"),
    "licenses": Option("L"),
    "nice": Option("", "optional"),
    "no-kill": Option("k", "optional"),
    "no-requeue": Option("", "none"),
    "nodelist": Option("w"),
    "oom-kill-step": Option("", "optional"),
    "overcommit": Option("O", "none"),
    "oversubscribe": Option("s", "optional"),
    "partition": Option("p"),
    "propagate": Option("", "optional"),
    "qos": Option("q"),
    "reboot": Option("", "none"),
    "requeue": Option("", "none"),
    "resv-ports": Option("", "optional"),
    "spread-job": Option("", "none"),
    "stepmgr": Option("", "none"),
    "use-min-nodes": Option("", "none"),
}
"""Options that have a meaning only on a cluster."""


TABLE: dict[str, Option] = {
    **HONOURED,
    **HOLDS,
    **FILES,
    **CLUSTER,
    **{name: Option(short, value) for name, (short, value, _) in REFUSED.items()},
}
LONG = sorted(TABLE)
