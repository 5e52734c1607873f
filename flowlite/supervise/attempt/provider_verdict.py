"""Corrects the end of an attempt with what the provider says about its nodes.

When a machine fails, a provider such as Slurm ends the rest of the gang. The reason then names the machine that
failed, and says that the signals to the other workers followed from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from flowlite.node.protocol import messages
from flowlite.provider import Instance
from flowlite.state import clock
from flowlite.supervise.attempt.outcome import End, taken_away
from flowlite.supervise.record import wording

# While the provider is still ending nodes it may not say why. Slurm gives processes 30 s and more to end.
_DECIDES_SECONDS = 60.0
# The first answer may be one that was cached before the end of the gang. The next one, after this time, is newer.
_EVERY = 0.5
_ENDED, _ENDING = "ended", "ending"
_MOST_NAMED = 3


async def as_told(
    end: End,
    ask: Callable[[], Awaitable[Sequence[Instance]]],
    waits: bool,
    names: Mapping[str, str],
) -> End:
    """Returns the end, corrected with what the provider says about the nodes.

    Args:
        end: The end as the gang reported it.
        ask: Asks the provider for the instances.
        waits: Whether the provider ends all nodes if one fails, so that its answer is worth waiting for.
        names: Names of the instances for people, by id: "node 1 (i-0abc)".
    """
    found = await ask()
    if waits:
        found = await _decided(found, ask)
    gone = [each for each in found if each.preempted]
    taken = sorted(each.id for each in gone)
    if taken and not (waits and gone[0].why):
        return taken_away(end, taken)
    over = sorted((each for each in found if each.state == _ENDED), key=lambda each: each.id)
    told = _cause(gone if taken else over, names) if waits else ""
    if not told:
        return end
    ids = tuple({*end.replace, *(taken or (each.id for each in over))})
    if taken:
        reason = wording.after_cause(told, end.reason)
        return replace(end, outcome=messages.PREEMPTED, reason=reason, replace=ids)
    if not _may_follow(end):
        # The user has to know what happened first.
        return replace(end, reason=f"{end.reason}; {told}", replace=ids)
    reason = wording.after_cause(told, end.reason)
    return replace(end, outcome=messages.LOST, reason=reason, replace=ids)


async def _decided(
    found: Sequence[Instance], ask: Callable[[], Awaitable[Sequence[Instance]]]
) -> Sequence[Instance]:
    """Asks again until no node is being ended, or until `_DECIDES_SECONDS` have passed. Returns the last answer."""
    until = clock.monotonic() + _DECIDES_SECONDS
    again = not any(each.state == _ENDED or each.preempted for each in found)
    while (again or any(map(_undecided, found))) and clock.monotonic() < until:
        await asyncio.sleep(_EVERY)
        found, again = await ask(), False
    return found


def _cause(over: Sequence[Instance], names: Mapping[str, str]) -> str:
    """Returns why nodes have ended, in one clause that names those that failed; "" if the provider does not say."""
    failed = [each for each in over if each.failed]
    if not failed:
        return over[0].why if over else ""
    told = [f"{names[each.id]} failed: {each.why}" for each in failed[:_MOST_NAMED]]
    more = len(failed) - len(told)
    return "; ".join(told) + (f"; and {more} more nodes" if more else "")


def _may_follow(end: End) -> bool:
    """Whether the end may be a consequence of the provider ending nodes: no worker failed by itself."""
    bad = [body for body in end.workers.values() if wording.failed_by_itself(body)]
    return end.outcome != messages.FAILED or all(map(wording.was_signalled, bad))


def _undecided(instance: Instance) -> bool:
    return instance.state == _ENDING and not instance.preempted
