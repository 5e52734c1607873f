"""`scontrol` inside a batch script, with the requests that scripts make, above all `show hostnames`.

Other requests are passed to Slurm's own scontrol if this node has it. It knows nothing of the job's number where the
gang is none of its jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import hostlist, slurm_programs
from .rendezvous_file import JobFacts

_JOB = ("job", "jobs", "jobid")
_ENDS_WITHIN = 120.0
"""Seconds within which Slurm ends a job that it has queued again, KillWait included."""


def main(arguments: list[str]) -> int:
    """Runs `scontrol ATTEMPT_DIR COMMAND…`."""
    attempt = Path(arguments[0])
    words = arguments[1:]
    plain = [word for word in words if not word.startswith("-")]
    what = plain[1] if plain[:1] == ["show"] and len(plain) > 1 else ""
    what, equals, value = what.partition("=")
    named = [value, *plain[2:]] if equals else plain[2:]
    try:
        if what in ("hostnames", "hostname"):
            return _hostnames(named)
        if what in ("hostlist", "hostlistsorted"):
            names = hostlist.expand(",".join(map(_read, named)).replace("\n", ","))
            if what == "hostlistsorted":
                names.sort(key=hostlist.order)
            _say(hostlist.compress(names))
            return 0
        if what in _JOB and _is_own_job(attempt, named):
            return _job(attempt, named)
        real = slurm_programs.find("scontrol", attempt)
        if real is not None and plain[:1] in (["requeue"], ["requeuehold"]):
            return _requeue(attempt, [real, *words], plain[1:])
        if real is not None:
            os.execv(real, ["scontrol", *words])
        if what in _JOB:
            return _job(attempt, named)
    except (hostlist.HostlistError, OSError) as error:
        sys.stderr.write(f"scontrol: error: {error}\n")
        return 1
    sys.stderr.write(
        f"scontrol: error: there is no Slurm here; of its commands this gang knows `show hostnames`, "
        f"`show hostlist` and `show job`, not {' '.join(words) or 'nothing'!r}\n"
    )
    return 1


def _requeue(attempt: Path, argv: list[str], jobs: list[str]) -> int:
    """Has Slurm queue jobs again. For the gang's own it returns only if the gang is not ended.

    A script that ends with success before that, as by the usual `scontrol requeue $SLURM_JOB_ID; exit`, would be taken
    for finished.
    """
    done = subprocess.run(argv, check=False)
    ground = JobFacts.read(attempt)
    variables = ground.environment
    element = f"{variables.get('SLURM_ARRAY_JOB_ID')}_{variables.get('SLURM_ARRAY_TASK_ID')}"
    if (
        not done.returncode
        and ground.of_slurm
        and {ground.job, element} & set(",".join(jobs).split(","))
    ):
        # Slurm sends it to all processes of the job, before the gang knows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        until, parent = time.monotonic() + _ENDS_WITHIN, os.getppid()
        while time.monotonic() < until and os.getppid() == parent:
            time.sleep(0.1)
    return done.returncode


def _is_own_job(attempt: Path, words: list[str]) -> bool:
    """Whether the job asked for is the gang's own, and none of Slurm's."""
    ground = JobFacts.read(attempt)
    return not ground.of_slurm and words[:1] in ([], [ground.job])


def _hostnames(words: list[str]) -> int:
    text = words[0] if words else os.environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        sys.stderr.write("scontrol: error: no list of hosts, and SLURM_JOB_NODELIST is not set\n")
        return 1
    for host in hostlist.expand(text):
        _say(host)
    return 0


def _read(words: str) -> str:
    """Returns names of hosts; a path stands for the file that has them, one on each line."""
    if not words.startswith("/"):
        return words
    with open(words, encoding="utf-8", errors="replace") as file:
        return file.read()


def _job(attempt: Path, words: list[str]) -> int:
    ground = JobFacts.read(attempt)
    if words and words[0] != ground.job:
        sys.stderr.write(f"scontrol: error: this gang is job {ground.job}, there is no other\n")
        return 1
    name = ground.environment.get("SLURM_JOB_NAME", "")
    _say(f"JobId={ground.job} JobName={name}")
    _say("   JobState=RUNNING Reason=None Dependency=(null)")
    _say(f"   NodeList={hostlist.compress(ground.names)}")
    _say(f"   NumNodes={len(ground.names)} NumTasks={sum(ground.counts)}")
    _say(f"   WorkDir={ground.directory}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
