"""One thing that is to go wrong with a call to a cloud's API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BEFORE, AFTER = "before", "after"


@dataclass
class Fault:
    """One thing that is to go wrong.

    Attributes:
        action: The call it is about, as `calls` names it; "*" for every one.
        code: The cloud's own word for the error.
        message: The rest of it; something plausible if none is given.
        status: Of the HTTP reply; what goes with the code if 0.
        when: "before" the call has its effect, or "after" it, on the way back.
        times: How many calls; -1 for all until `clear`.
        skip: How many such calls go well first.
        retry_after: Seconds for the header of that name.
        hang: Seconds that the caller waits before the connection is dropped without a reply.
        match: Parameters that the call has to have.
        kill: Whether the process that calls is killed, outright.
        pid: Which process instead; None for the caller.
    """

    action: str
    code: str = ""
    message: str = ""
    status: int = 0
    when: str = BEFORE
    times: int = 1
    skip: int = 0
    retry_after: float | None = None
    hang: float = 0.0
    match: dict[str, Any] = field(default_factory=dict)
    kill: bool = False
    pid: int | None = None
