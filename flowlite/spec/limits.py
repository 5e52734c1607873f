"""Limits of a task: priority, cost, run time and retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flowlite.spec.base import Spec
from flowlite.spec.retry_policy import RetryPolicy

Priority = Literal["low", "med", "high"]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Retries(Spec):
    """How often, and after which pauses, a failed gang is started again. Preemptions do not count.

    Attributes:
        max_retries: New attempts after the first one.
        delay: Seconds before the first new attempt.
        backoff: Each further pause is this many times the one before.
        max_delay: Longest pause, in seconds.
    """

    positional: ClassVar[tuple[str, ...]] = ("max_retries",)

    max_retries: Annotated[int, Field(ge=0, le=1000)]
    delay: NotNegative = RetryPolicy.delay
    backoff: Annotated[float, Field(ge=1, le=100)] = RetryPolicy.backoff
    max_delay: NotNegative = RetryPolicy.max_delay

    @property
    def policy(self) -> RetryPolicy:
        """The same values as the supervisor uses them."""
        return RetryPolicy(self.max_retries, self.delay, self.backoff, self.max_delay)

    if TYPE_CHECKING:

        def __init__(
            self,
            max_retries: int,
            *,
            delay: float = 0.0,
            backoff: float = 2.0,
            max_delay: float = 300.0,
        ) -> None: ...
