"""Errors for nodes reached through `srun`, from what `srun` printed last."""

from __future__ import annotations

import re
from collections.abc import Callable

from flowlite.errors import NodeUnreachable

_GONE = (
    (r"Invalid job id|Job/step already completing or completed", ""),
    (r"Unable to confirm allocation|[Ee]xpired|Job has been cancelled|is not running", ""),
    (r"DUE TO TIME LIMIT", "its time limit was reached"),
    (r"DUE TO PREEMPTION", "it was preempted"),
    (r"DUE TO NODE FAILURE|NODE FAILURE|[Nn]ode failure", "a node of it has failed"),
    (r"\*\*\* JOB \S+ .*CANCELLED AT", "it was cancelled"),
)
# Either the step alone was cancelled, or its job; the next request will show which.
_STEP_ENDED = r"\*\*\* STEP \S+ .*CANCELLED AT"
_ELSEWHERE = r"node configuration is not available|not in this job|is not part of|Invalid node name"
_NO_COMMAND = (126, 127)


class JobGone(NodeUnreachable):
    """The node's job has ended, or the node is no longer part of it."""


def srun_lost(label: str) -> Callable[[int | None, str], NodeUnreachable | None]:
    """Makes the error for a node that was reached through `srun`."""

    def explain(code: int | None, said: str) -> NodeUnreachable | None:
        for pattern, why in _GONE:
            if re.search(pattern, said):
                told = f" ({why})" if why else ""
                return JobGone(f"{label}: its job has ended{told}; Slurm said: {said}")
        if re.search(_ELSEWHERE, said):
            return JobGone(f"{label}: it does not belong to the job any more; Slurm said: {said}")
        if re.search(_STEP_ENDED, said):
            return NodeUnreachable(f"{label}: the step of its job that led there was cancelled")
        if code in _NO_COMMAND:
            return NodeUnreachable(
                f"{label}: a command on the way cannot be run (exit status {code}): {said}. "
                "Look whether Slurm's commands and the Python that is set are there"
            )
        return None

    return explain
