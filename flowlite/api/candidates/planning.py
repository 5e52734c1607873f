"""Plans all places where a task may run. Providers are asked side by side, and none holds up the others for long.

This process goes on asking a provider that does not answer in time. When it ends, a background process does so
(`background_planning.py`). Adapters store what they read, such as the types and prices of a cloud, for later plans.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

from flowlite.api.candidates.alternatives import Alternative, alternatives_of
from flowlite.api.candidates.capped_plan import adapters_plan, capped_plan, within_caps
from flowlite.api.candidates.ranking import Candidates, LeftOut, ranked
from flowlite.api.candidates.spot_ceilings import PlannedPlace, with_common_ceilings
from flowlite.errors import ConfigError, FlowError, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.output.slow_notice import told_if_slow
from flowlite.provider import Candidate, Plan

if TYPE_CHECKING:
    from flowlite.provider import Provider
    from flowlite.spec import TaskConfig

ANSWER_SECONDS = 2.0
"""How long several providers are waited for. As long as none has a place for the task, so long once more."""
REGION_SECONDS = 30.0
"""How long the regions of the only provider are waited for. A user who names one provider wants its answer."""
PATIENT_SECONDS = 300.0
"""How long a background process waits for a provider."""
SAID_AFTER = 5.0
"""After how many seconds the user is told that the only place is waited for."""

# What a provider can raise for a place that is none.
_REASONS = (FlowError, ImportError, OSError)


@dataclass(frozen=True, slots=True)
class _Place:
    """What one thread asks: the regions of a provider, or the plans in one of them."""

    provider: str
    region: str | None = None
    planning: bool = False


def plan_candidates(
    config: TaskConfig,
    names: Sequence[str],
    adapter: Callable[[str], Provider],
    *,
    only_configured: bool = False,
    say: Callable[[str], None] | None = None,
) -> Candidates:
    """Plans a task at all places that its options allow.

    Args:
        config: The task, with the defaults of the settings.
        names: The providers to ask.
        adapter: Returns the adapter of a provider.
        only_configured: Leave out providers that are not set up, without a word.
        say: Tells the user who is waited for, if it takes long.

    Raises:
        ConfigError: No place is possible.
        CapExceeded: All places break a cap.
        ProviderError: No provider answers.
    """
    if len(names) == 1 and not only_configured:
        provider = adapter(names[0])
        by_region = alternatives_of(config, provider, 0, alone=True)
        first = [each for found in by_region.values() for each in found]
        if len(first) == 1:
            with _told_if_slow(provider.name, say):
                return _only_one(config, provider, first[0])
        asking = _Asking(config, adapter, REGION_SECONDS)
        asking.plan_all(provider, by_region)
    else:
        asking = _Asking(config, adapter, ANSWER_SECONDS)
        for place, name in enumerate(names):
            asking.ask(name, place, only_configured)
    asking.wait(say)
    asking.ask_on()
    places = asking.planned
    if config.prefer == "price":
        places = with_common_ceilings(places)
    planned = [(each.alternative, each.plan) for each in places]
    return ranked(planned, asking.left_out, config.prefer)


def ask_patiently(config: TaskConfig, provider: Provider) -> None:
    """Has a provider make all its plans of a task, for what it remembers of them. Who does not answer is left alone."""
    asking = _Asking(config, lambda _: provider, PATIENT_SECONDS)
    asking.ask(provider.name, 0, only_configured=False)
    asking.wait()


def _told_if_slow(name: str, say: Callable[[str], None] | None) -> AbstractContextManager[None]:
    """Tells the user that the only place is waited for, if it takes long."""
    if say is None:
        return nullcontext()
    text = (
        f"{name} has not answered for {SAID_AFTER:g} s; it is waited for, since it is the only place. Clouds take "
        "longer at first, when their types and prices are read"
    )
    return told_if_slow(say, text, SAID_AFTER)


def _only_one(config: TaskConfig, provider: Provider, found: Alternative) -> Candidates:
    """The plan of a task with a single place, made from the options as they are."""
    changed = isinstance(config.gpu, tuple) or config.spot != found.options["spot"]
    one = config.replace(**_changes(config, found)) if changed else config
    return Candidates((Candidate(capped_plan(one, provider), dict(found.options)),))


def _changes(config: TaskConfig, found: Alternative) -> Any:
    """The options of an alternative that differ from those of the task."""
    return {name: value for name, value in found.options.items() if getattr(config, name) != value}


@dataclass(slots=True)
class _Answer:
    """What a thread has found for a place: plans, or the regions of a provider, with the alternatives in each.

    `error` is one that is none of the provider.
    """

    place: _Place
    planned: list[PlannedPlace] = field(default_factory=list)
    left_out: list[tuple[Alternative | None, LeftOut]] = field(default_factory=list)
    provider: Provider | None = None
    by_region: dict[str | None, list[Alternative]] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass(eq=False)
class _Asking:
    """Providers that are asked in threads.

    The threads are daemons: a program does not wait at its end for a provider that never answers.

    Attributes:
        seconds: How long they are waited for, and so long again as long as there is no plan.
        planned: The plans that have come.
        left_out: The alternatives without a plan.
    """

    config: TaskConfig
    adapter: Callable[[str], Provider]
    seconds: float
    planned: list[PlannedPlace] = field(default_factory=list)
    left_out: list[tuple[Alternative | None, LeftOut]] = field(default_factory=list)
    _open: dict[_Place, list[Alternative]] = field(default_factory=dict)
    _threads: dict[_Place, threading.Thread] = field(default_factory=dict)
    _adapters: dict[str, Provider] = field(default_factory=dict)
    _answers: queue.SimpleQueue[_Answer] = field(default_factory=queue.SimpleQueue)

    def ask(self, name: str, place: int, only_configured: bool) -> None:
        """Asks a provider for its regions, and then for a plan in each."""

        def regions(answer: _Answer) -> None:
            provider = self._adapters[name] = self.adapter(name)
            if provider.configured() or not only_configured:
                answer.provider = provider
                answer.by_region = alternatives_of(self.config, provider, place, alone=False)

        self._start(_Place(name), [], regions)

    def plan_all(self, provider: Provider, by_region: dict[str | None, list[Alternative]]) -> None:
        """Asks a provider for the plans in all its regions."""
        self._adapters[provider.name] = provider
        for region, alternatives in by_region.items():
            work = functools.partial(self._plan_region, provider, alternatives)
            self._start(_Place(provider.name, region, planning=True), alternatives, work)

    def wait(self, say: Callable[[str], None] | None = None) -> None:
        """Waits until all have answered or, when the time for answers is over, there is a plan.

        `say` tells the user who is waited for, if there is no plan in time.
        """
        until = time.monotonic() + self.seconds
        while self._open:
            left = until - time.monotonic()
            if left <= 0:
                if self.planned:
                    break
                if say is not None:
                    say(
                        f"{self._still_open()}; no other place is known yet, so the answer is waited for"
                    )
                    say = None
                until += self.seconds
                continue
            with suppress(queue.Empty):
                self._take(self._answers.get(timeout=left))
        for place, alternatives in self._open.items():
            options = {"provider": place.provider, "region": place.region}
            first = alternatives[0] if alternatives else None
            self.left_out.append((first, LeftOut(options, self._silent(place))))

    def ask_on(self) -> None:
        """Has who did not answer asked on, should this process end before."""
        for name in {place.provider for place in self._open}:
            self._ask_on(name)

    def _still_open(self) -> str:
        names = ", ".join(sorted({place.provider for place in self._open}))
        return f"{names} did not answer within {self.seconds:g} s"

    def _silent(self, place: _Place) -> ProviderError:
        """The reason why a place that has not answered is left out."""
        alone = f"provider={place.provider!r}"
        if len(self._adapters) == 1 and place.region is not None:
            alone = f"region={place.region!r}"
        return ProviderError(
            f"{place.provider} did not answer within {self.seconds:g} s; it is asked on in the background, so that "
            f"another try in a moment may have it, and {alone} alone is waited for"
        )

    def _ask_on(self, name: str) -> None:
        provider = self._adapters.get(name)
        threads = [self._threads[place] for place in self._open if place.provider == name]

        def begin() -> None:
            if provider is None or not any(thread.is_alive() for thread in threads):
                return
            from flowlite.supervise.background import run_detached

            asked = {"config": self.config.to_dict(), "settings": provider.settings.to_json()}
            # Not as an argument, which other users of this machine could read.
            run_detached(
                provider.home, f"{__package__}.background_planning", given=json.dumps(asked)
            )

        atexit.register(begin)

    def _take(self, answer: _Answer) -> None:
        del self._open[answer.place]
        if answer.error is not None:
            raise answer.error
        self.planned += answer.planned
        self.left_out += answer.left_out
        if answer.provider is not None:
            self.plan_all(answer.provider, answer.by_region)

    def _start(
        self, place: _Place, alternatives: list[Alternative], work: Callable[[_Answer], None]
    ) -> None:
        def run() -> None:
            answer = _Answer(place)
            try:
                work(answer)
            except _REASONS as error:
                answer.left_out.append((None, LeftOut({"provider": place.provider}, error)))
            except BaseException as error:
                answer.error = error
            self._answers.put(answer)

        self._open[place] = alternatives
        thread = threading.Thread(target=run, name=f"flowlite-plan-{place.provider}", daemon=True)
        self._threads[place] = thread
        thread.start()

    def _plan_region(
        self, provider: Provider, alternatives: list[Alternative], answer: _Answer
    ) -> None:
        for each in alternatives:
            try:
                answer.planned.append(self._plan(provider, each))
            except _REASONS as error:
                answer.left_out.append((each, LeftOut(each.options, error)))

    def _plan(self, provider: Provider, found: Alternative) -> PlannedPlace:
        one = self.config.replace(**_changes(self.config, found))
        given = adapters_plan(one, provider)

        def with_price_cap(cap: float) -> Plan:
            lowered = dataclasses.replace(given, price_cap=cap)
            return within_caps(one, lowered, provider.teardown_seconds)

        plan = within_caps(one, given, provider.teardown_seconds)
        if one.gpu is not None and not plan.gpus_per_node:
            raise ConfigError(f"it has no {one.gpu}; the task would only be rehearsed on CPU")
        can_be_capped = plan.spot and provider.caps_spot_price
        return PlannedPlace(found, plan, with_price_cap if can_be_capped else None)
