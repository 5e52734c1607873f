"""A `scontrol` in front of Slurm's own, for commands in a job of Slurm that have the job queued again.

A command that ends with success at once, as by the usual `scontrol requeue $SLURM_JOB_ID; exit`, would be taken for
finished: Slurm's signal, from which the gang learns of it, comes some milliseconds later. This one therefore returns
only if the job is not ended. Batch scripts have a `scontrol` of their own (`sbatch/scontrol.py`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..system import atomic_files

_DIRECTORY = "slurm"
# It waits for up to two minutes, in which Slurm ends a job that it has queued again, KillWait included.
_TEXT = """\
#!/bin/sh
real={real}
case " $* " in *" requeue "*|*" requeuehold "*) ;; *) exec "$real" "$@" ;; esac
trap '' TERM
"$real" "$@" || exit
own=
for word; do
    case ",$word," in
        *",$SLURM_JOB_ID,"*|*",${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}},"*) own=yes ;;
    esac
done
left=1200
while [ "$own" ] && [ "$left" -gt 0 ] && kill -0 "$PPID" 2>/dev/null; do sleep 0.1; left=$((left - 1)); done
"""


def path_with_scontrol(
    path: str | None, attempt: Path, call: Mapping[str, Any], variables: Mapping[str, str]
) -> str | None:
    """Returns a command's PATH with this program in front, which is written; as it is where there is no use for it.

    Args:
        path: PATH as the command would have it.
        attempt: The directory of the attempt.
        call: The call, as `AgentConfig.call`.
        variables: Those of the agent. A gang that is a job of Slurm has SLURM_JOB_ID.
    """
    # A Python that is held before its script has its PATH already.
    plain = call["kind"] == "command" and not {"batch", "imports"} & call.keys()
    if not (plain and path and variables.get("SLURM_JOB_ID")):
        return path
    # Imported here, since every agent imports this module.
    from shutil import which

    real = which("scontrol", path=path)
    if real is None:
        return path
    directory = attempt / _DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    text = _TEXT.format(real=shlex.quote(os.path.abspath(real)))
    atomic_files.place(text.encode(), str(directory / "scontrol"), 0o700)
    return f"{directory}:{path}"
