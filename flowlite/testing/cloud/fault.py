"""One fault to inject into calls to a cloud's API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BEFORE, AFTER = "before", "after"


@dataclass
class Fault:
    """A fault to inject.

    Attributes:
        action: The call to fail, as `calls` names it; "*" for every call.
        code: The cloud's error code.
        message: The error message; a plausible one if empty.
        status: The HTTP status; the code's usual status if 0.
        when: "before" the call has its effect, or "after" it, in place of the reply.
        times: How many calls fail; -1 for all until `clear`.
        skip: How many matching calls succeed first.
        retry_after: The value of the `Retry-After` header in seconds.
        hang: Seconds after which the connection is dropped without a reply.
        late: Seconds by which the reply comes late.
        match: Parameters that the call must have.
        kill: Whether the calling process is killed, by SIGKILL.
        pid: The process to kill; None for the caller.
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
    late: float = 0.0
    match: dict[str, Any] = field(default_factory=dict)
    kill: bool = False
    pid: int | None = None
