"""How often, and after which pauses, a failed gang is started again.

Standard library only, so that the supervisor may use it.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowlite.node.quick_dataclass import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """The values of `retries=`, which `Retries` describes, with their defaults. Durations are in seconds."""

    max_retries: int = 0
    delay: float = 0.0
    backoff: float = 2.0
    max_delay: float = 300.0

    @classmethod
    def of(cls, value: object) -> RetryPolicy:
        """Reads `retries` of a stored configuration: a number, or a mapping with any of the fields."""
        if isinstance(value, int):
            return cls(value)
        if not isinstance(value, Mapping):
            return cls()
        return cls(
            int(value.get("max_retries", cls.max_retries)),
            float(value.get("delay", cls.delay)),
            float(value.get("backoff", cls.backoff)),
            float(value.get("max_delay", cls.max_delay)),
        )

    @property
    def longest_pause(self) -> float:
        """The longest time between two attempts, when nothing of the task runs on its nodes."""
        return float(self.max_delay) if self.max_retries and self.delay else 0.0

    def delay_before(self, retry: int) -> float:
        """Returns the pause before the `retry`-th new attempt, counted from 1."""
        if self.delay <= 0:
            return 0.0
        # Larger exponents would overflow, and the result is capped anyway.
        return float(min(self.delay * self.backoff ** min(retry - 1, 64), self.max_delay))
