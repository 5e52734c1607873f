"""What `launch` raises as long as a launch is under way, or its outcome is unknown."""

from __future__ import annotations

from flowlite.errors import ProviderError


class LaunchPending(ProviderError):
    """The launch is under way, or its outcome is not known yet: `launch` has to be called again with the same token.

    Something of the launch exists or may still come into existence, such as a job in a queue, an open bid, machines
    that boot, or whatever a request without an answer has created. `CapacityUnavailable` promises the opposite.

    Attributes:
        retry_after: Seconds until the next call.
        queued: Whether the provider has given nothing yet and may not for a long time, as for a job in a queue or an
            open bid. The supervisor may then end the launch, and ask another candidate of the task.
    """

    def __init__(self, message: str, retry_after: float = 5.0, *, queued: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.queued = queued
