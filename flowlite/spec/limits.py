"""Limits of a task: priority, cost, run time and retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flowlite.spec.base import Spec

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
    delay: NotNegative = 0.0
    backoff: Annotated[float, Field(ge=1, le=100)] = 2.0
    max_delay: NotNegative = 300.0

    @property
    def longest_pause(self) -> float:
        """The longest time in seconds between two attempts, when nothing of the task runs on its nodes."""
        return float(self.max_delay) if self.max_retries and self.delay else 0.0

    if TYPE_CHECKING:

        def __init__(
            self,
            max_retries: int,
            *,
            delay: float = 0.0,
            backoff: float = 2.0,
            max_delay: float = 300.0,
        ) -> None: ...
