"""What a supervisor records about its task: state changes with their reasons, and events of the gang."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowlite.node.protocol import messages
from flowlite.output import redact
from flowlite.output.redact import Mask
from flowlite.state import clock
from flowlite.state.store import FullPlace, InstanceRecord, Lease, Store, TaskRecord
from flowlite.supervise.attempt.fetch_outputs import what
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.attempt.unfetched import MissingOnNode
from flowlite.supervise.record import lifecycle, wording
from flowlite.supervise.record.lifecycle import State, TaskEvent

# Events of the gang that are added to the task's history unchanged.
_KEPT = frozenset({*messages.NOTICES, "suspect", "back", "lost", "preempting", "should_stop"})
# Shortest time between two records of progress, and of waiting. Each write wakes every process that watches a task.
_PROGRESS_EVERY = 1.0
_SENDING_EVERY = 2.0
_WAITING_EVERY = 5.0
_SILENCE = "silence"
_TOO_LATE = "the cancellation came after its end"
_REFUSED = "refused"
_LONGEST_REASON = 300
# Failure reports kept in the history of one attempt. Thousands of ranks may fail at the same time.
_MOST_FAILURES = 256
# Bytes of events from nodes kept for one task. Every client that looks at the task reads all of them.
_MOST_KEPT = 16 << 20
_NO_MORE = "its nodes have said so much that nothing more of it is kept here; its logs are whole"


class Journal:
    """The task as last recorded. The supervisor changes the task only through this class."""

    def __init__(
        self, store: Store, lease: Lease, record: TaskRecord, mask: Mask | None = None
    ) -> None:
        """
        Args:
            mask: Removes secrets from everything that workers, nodes and agents say, before it is recorded.
        """
        self._secrets = mask or Mask()
        self._store = store
        self._lease = lease
        self.record = record
        self._joined: set[int] = set()
        self._failures: list[dict[str, Any]] = []
        self._first = ""
        self._progress_at = clock.monotonic()
        self._silent = False
        self._waiting_at, self._waits_for = 0.0, ""
        self._cancelling = False
        # The reason without what was added to it for a time, and the kind of that addition.
        self._cause, self._addition = record.reason, ""
        past = store.events(record.id) if record.state != State.PENDING else ()
        # Attempts whose ranks have started, even if they failed afterwards.
        self._started = {
            event.data.get("attempt")
            for event in past
            if event.data.get("happening") == TaskEvent.GO.value
        }
        self._seen = {_mark(event.kind, event.data.get("attempt"), event.data) for event in past}
        latest = next((each for each in reversed(past) if "happening" in each.data), None)
        if latest is not None and "cause" in latest.data:
            self._cause = str(latest.data["cause"])
            self._addition = str(latest.data["addition"])
        self._room = _MOST_KEPT - sum(_size(event.text, event.data) for event in past)

    def _mask(self, text: str) -> str:
        # Keys of a provider become known only while it is used.
        return redact.cleaned(self._secrets(text))

    def readable(self, text: str) -> str:
        """Returns a text of a cloud or node as it may be stored: short, without secrets and control sequences."""
        return messages.shorten(self._mask(text))

    def _inside(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._secrets.inside(data))

    @property
    def has_started(self) -> bool:
        """Whether the ranks of the current attempt have started, whichever supervisor led the task then."""
        return self.record.attempt in self._started

    def reload(self) -> None:
        """Reads the task again, after a write whose outcome is unknown."""
        self.record = self._store.get_task(self.record.id)

    def step(
        self,
        event: TaskEvent,
        *,
        outcome: str | None = None,
        instances: Sequence[InstanceRecord] = (),
        settled: Mapping[str, str] | None = None,
        full: FullPlace | None = None,
        cause: str | None = None,
        addition: str = "",
        updates: bool = False,
        **words: Any,
    ) -> None:
        """Records an event, the state that follows, and everything that belongs to it, in one transaction.

        Args:
            outcome: How the task ends, once that is decided.
            instances: As for `Store.transition`.
            settled: As for `Store.transition`.
            full: As for `Store.transition`.
            cause: The reason without what it has for a time only; None if it has no such addition.
            addition: The kind of that addition.
            updates: As for `Store.transition`.
            words: Values for the wording of the reason. Those named like a field of the task are stored in that field.

        Raises:
            ImpossibleTransition: The lifecycle does not allow the event in this state.
            LeaseLost: Another supervisor has taken over.
        """
        fields = {f.name for f in dataclasses.fields(TaskRecord)}
        changes: dict[str, Any] = {name: value for name, value in words.items() if name in fields}
        if outcome is not None:
            changes["outcome"] = outcome
        following = lifecycle.step(self.record.state, event, **words)
        reason = self.readable(following.reason)
        changes |= {"state": following.state.value, "reason": reason}
        data = {
            "happening": event.value,
            "attempt": changes.get("attempt", self.record.attempt),
        }
        if cause is not None:
            cause = self.readable(cause)
            data |= {"cause": cause, "addition": addition}
        if self.record.candidates:
            data["candidate"] = changes.get("candidate", self.record.candidate)
        self._store.transition(
            self._lease,
            following.state.value,
            reason,
            data,
            instances=instances,
            settled=settled,
            full=full,
            updates=updates,
            **changes,
        )
        self.record = dataclasses.replace(self.record, **changes)
        self._cause = reason if cause is None else cause
        self._addition = addition
        if event is not TaskEvent.WAIT:
            self._waits_for = ""
        if event is TaskEvent.GO:
            self._started.add(self.record.attempt)
        if event is TaskEvent.LAUNCHED:
            self._joined, self._failures, self._first = set(), [], ""
            self._progress_at = clock.monotonic()

    def note(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:
        """Adds an entry to the task's history."""
        body = {"attempt": self.record.attempt, **self._inside(data or {})}
        self._store.add_event(self.record.id, kind, self._mask(text), body)

    def noted(self, kind: str, what: str) -> bool:
        """Whether such an entry of the present attempt says that, whichever supervisor led the task then."""
        return any(
            each.kind == kind
            and each.data.get(what)
            and each.data["attempt"] == self.record.attempt
            for each in self._store.events(self.record.id)
        )

    def kept_warm(self, instances: Iterable[InstanceRecord]) -> None:
        """Records which nodes are kept warm, and are still charged, after the end of the task."""
        kept = [each for each in instances if each.state == "warm" and each.ended_at is not None]
        if not kept:
            return
        until = max(each.ended_at or 0.0 for each in kept)
        at = time.strftime("%H:%M:%S", time.localtime(until))
        what = (
            f"{lifecycle.nodes(len(kept))} {'is' if len(kept) == 1 else 'are'} kept warm until {at}"
        )
        self.note("warm", what, {"instances": [each.id for each in kept], "until": until})

    def waiting(self, why: str) -> None:
        """Shows what the task waits for, at once or with a later `tell_progress`."""
        self._waits_for = why
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        now = clock.monotonic()
        quiet = self._cancelling or now < self._waiting_at
        if (State(self.record.state), TaskEvent.WAIT) not in lifecycle.TABLE or quiet:
            return
        why, self._waits_for = self._waits_for, ""
        if why and self.readable(why) != self.record.reason:
            self._waiting_at = now + _WAITING_EVERY
            self.step(TaskEvent.WAIT, why=why, updates=True)

    def cancelling(self) -> None:
        """Records that the task is being cancelled, before the supervisor does anything else."""
        self._cancelling, state = True, State(self.record.state)
        if state is State.PROVISIONING:
            self.step(TaskEvent.WAIT, why="cancelled; waits for the provider's answer")
        elif state is State.STOPPING and self.record.outcome:
            self._add("too late", _TOO_LATE)
        elif (state, TaskEvent.PROGRESS) in lifecycle.TABLE:
            before = "cancelled; until then: "
            self.step(
                TaskEvent.PROGRESS,
                why=f"{before}{self.record.reason}",
                cause=f"{before}{self._cause}",
                addition=self._addition,
            )

    def not_gone(self, what: str, pause: float) -> None:
        """Adds to the reason that the nodes cannot be ended, or are still listed."""
        told = f"{_in_short(what)}, next try in {wording.duration(pause)}"
        self._add("not gone", f"its nodes are not gone yet: {told}")

    def left_to_next(self, what: str) -> None:
        """Adds to the reason that its nodes are not gone, and that this supervisor leaves their end to the next one."""
        self._add(
            "not gone",
            f"its nodes are not gone yet: {_in_short(what)}; the next `flow` command whose credentials are accepted "
            "ends them",
        )

    def credentials_refused(self, what: str) -> None:
        """Adds to the reason that the provider refuses the supervisor's credentials, and what that means."""
        text = (
            f"the credentials of the shell that has resumed it are refused: {_in_short(what)}; the ranks go on, and "
            "the next `flow` command after their end, with credentials that are accepted, ends the nodes"
        )
        self.note("warning", text)
        self._add(_REFUSED, text)

    def credentials_accepted(self) -> None:
        """Removes from the reason what an earlier supervisor has said of its credentials."""
        if self._addition == _REFUSED:
            self._tell(self._cause)

    def last_reason(self) -> str:
        """Returns why the task ends, without the parts about its nodes, collecting or a late cancellation."""
        return self._cause

    def _add(self, addition: str, text: str) -> None:
        """Adds a text to the reason, in place of an earlier addition."""
        why = "; ".join(filter(None, (self._cause, text)))
        # Nodes that are not gone may be told of for days, so an unchanged reason is not written again.
        if (State(self.record.state), TaskEvent.PROGRESS) not in lifecycle.TABLE:
            return
        if self.readable(why) != self.record.reason:
            self.step(
                TaskEvent.PROGRESS, why=why, cause=self._cause, addition=addition, updates=True
            )

    # Events of the gang

    def gang_event(self, event: dict[str, Any]) -> None:
        """Handles an event of the rendezvous. Events that a supervisor before this one recorded are skipped."""
        kind = event["kind"]
        if kind == "joined":
            self._joined.add(int(event["rank"]))
        elif kind == "go" and self.record.state == State.STARTING:
            # The time at which the leader opened the barrier; the event may arrive much later.
            ago = clock.now() - event.get("age", 0.0)
            began = self.record.started_at or max(self.record.created_at, ago)
            self.step(TaskEvent.GO, started_at=began)
        elif kind == "first_failure":
            self._first = wording.first_failure(event)
            self._note_events([(event, self._first)])
        elif kind == "worker" and wording.failed_by_itself(event):
            if len(self._failures) < _MOST_FAILURES:
                self._failures.append(event)
        elif kind == "stopping":
            self._stopping(event)
        elif kind == "cut_off":
            self._cut_off(event["since"], event["refusal"])
        elif kind == "collecting":
            self._collecting(event)
        elif kind == "fencing":
            self._tell(str(event["text"]))
        elif kind in _KEPT:
            self._note_events([(event, _text_of(event))])

    def lacking(self, end: End, nodes: Sequence[tuple[Node, MissingOnNode, bool]]) -> None:
        """Records which files of an attempt were not fetched and, for each node, whether they are kept there."""
        told = [
            {
                "node": node.rank,
                "instance": node.instance.id,
                "files": dict(holding.files),
                "kept": kept,
            }
            for node, holding, kept in nodes
        ]
        where = ", ".join(f"{what(holding)} of {node.name}" for node, holding, _ in nodes[:3])
        text = f"not all that the ranks wrote is here: {where}" + (", …" if nodes[3:] else "")
        self.note("lacking", text, {"nodes": told, "ended_well": end.ended_well})

    def flush(self) -> None:
        """Records the failures of the attempt's workers."""
        told = [
            (
                event,
                f"node {event.get('node')}, rank {event.get('rank')}: {wording.how_it_ended(event)}",
            )
            for event in self._failures
        ]
        self._note_events(told)
        self._failures = []

    def tell_progress(self, sending: str = "") -> None:
        """Updates the reason with what the task waits for, or with how many nodes have joined.

        Args:
            sending: How much of the project has been sent, while it is.
        """
        self._tell_waiting()
        now = clock.monotonic()
        early = now < self._progress_at + (_SENDING_EVERY if sending else _PROGRESS_EVERY)
        quiet = self._silent or self._cancelling or early
        if self.record.state != State.STARTING or quiet:
            return
        missing = [rank for rank in range(len(self.record.roster)) if rank not in self._joined]
        text = f"{len(self._joined)} of {lifecycle.nodes(len(self.record.roster))} joined"
        if missing:
            shown = ", ".join(f"{rank} ({self.record.roster[rank]})" for rank in missing[:3])
            text += f"; waiting for node {shown}" + (", …" if len(missing) > 3 else "")
        text = sending or text
        if text != self.record.reason:
            self._progress_at = now
            self.step(TaskEvent.PROGRESS, why=text, updates=True)

    def _cut_off(self, since: float | None, refusal: str) -> None:
        """Records that no node can be reached from here, or that they can again.

        Otherwise users would take the last state that was heard for the present one. A host that refuses us, as when
        our certificate has expired, needs them, and not patience.
        """
        self._silent = since is not None
        if since is None:
            if self._addition == _SILENCE:
                self._tell(self._cause)
            return
        at = time.strftime("%H:%M:%S", time.localtime(since))
        who = "the node" if len(self.record.roster) == 1 else "the nodes"
        why = f": {refusal}" if refusal else ""
        if (State(self.record.state), TaskEvent.PROGRESS) in lifecycle.TABLE:
            self.step(
                TaskEvent.PROGRESS,
                why=f"{who} cannot be reached since {at}{why}; nothing was stopped, and logs go on where they were "
                "once this is over",
                cause=self._cause,
                addition=_SILENCE,
            )

    def _collecting(self, event: Mapping[str, Any]) -> None:
        """Records how the gang has ended, and that some of what the ranks wrote is still being fetched."""
        self._stopping(event)
        self._add("collecting", f"waiting for what is not here yet: {event['text']}")

    def _tell(self, text: str) -> None:
        """Changes the reason without changing the state."""
        if (State(self.record.state), TaskEvent.PROGRESS) in lifecycle.TABLE:
            self.step(TaskEvent.PROGRESS, why=text)

    def _stopping(self, event: Mapping[str, Any]) -> None:
        if self.record.state not in (State.STARTING, State.RUNNING):
            return
        if event["outcome"] == messages.STOPPED:
            self.step(TaskEvent.CANCEL)
        elif event["outcome"] in (messages.DONE, messages.GROWING):
            # In a gang that grows, the ranks have ended because they were asked to.
            self.step(TaskEvent.DONE)
        else:
            self.step(TaskEvent.FAILURE, why=self._first or str(event["reason"]))

    def _note_events(self, told: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        """Adds events of the gang to the history, except those it already has."""
        attempt, fresh = self.record.attempt, []
        for event, text in told:
            kind = str(event["kind"])
            mark = _mark(kind, attempt, event)
            if mark in self._seen or self._room <= 0:
                continue
            self._seen.add(mark)
            left_out = ("kind", "time", "age")
            body = {name: value for name, value in event.items() if name not in left_out}
            kept = {**self._inside(body), "attempt": attempt}
            said = self.readable(text)
            fresh.append((kind, said, kept))
            self._room -= _size(said, kept)
            if self._room <= 0:
                fresh.append(("warning", _NO_MORE, {"attempt": attempt}))
        if fresh:
            self._store.add_events(self.record.id, fresh)


def _in_short(what: str) -> str:
    """Returns the first line of an error, without the middle if it is long: its end has the advice."""
    lines = what.strip().splitlines()
    return messages.shorten(lines[0], _LONGEST_REASON) if lines else "no answer"


def _size(text: str, body: Mapping[str, Any]) -> int:
    return len(text) + len(str(body))


def _mark(kind: str, attempt: object, body: Mapping[str, Any]) -> tuple[object, ...]:
    """Returns the key that identifies an event, whether it comes from the leader or from a report on disk."""
    what = body.get("rank") if kind in ("worker", "first_failure") else body.get("seq")
    return (kind, attempt, what)


def _text_of(event: Mapping[str, Any]) -> str:
    if "text" in event:
        return str(event["text"])
    where = f"node {event.get('rank')} ({event.get('instance')})"
    if event["kind"] == "back":
        return f"{where} answers again"
    verb = {"suspect": "may be gone", "lost": "is lost"}[event["kind"]]
    return f"{where} {verb}: {event.get('why')}"
