"""`Task`: one run as the client sees it. It reads the store and the files of the task; the supervisor does the work."""

from __future__ import annotations

import os
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from flowlite.errors import ConfigError, NotFound, TaskTimeout
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import trace
from flowlite.output import redact
from flowlite.output.reader import LogLine, Logs, parse_since
from flowlite.state import clock
from flowlite.supervise.gang_size import nodes_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from flowlite.api.node_access import NodeAccess
    from flowlite.api.outcomes import Outcomes
    from flowlite.api.session import Session
    from flowlite.connect.values import Completed
    from flowlite.state.store import Event, TaskRecord

R_co = TypeVar("R_co", covariant=True)

# Seconds between checks that the supervisor is alive, while a caller waits for the task.
ENSURE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a task.

    Attributes:
        rank: Node rank, or None for a node that never got a rank or was replaced.
        id: The provider's id of the instance.
        state: Its state as the provider last reported it.
        address: The address at which the other nodes reach it.
        price_per_hour: US dollars.
        warm_until: Unix time until which it is, or was, kept for the next task; None if it is not.
    """

    rank: int | None
    id: str
    state: str
    address: str
    price_per_hour: float
    warm_until: float | None = None


class Task(Generic[R_co]):
    """One run of a function or command. Made by `Function.spawn`, `Flow.run` and `Flow.get_task`.

    Its properties show the state at the moment of reading; none of them waits. Times are in local time, costs in US
    dollars.

    Attributes:
        id: Unique id: "t" and ten letters or digits.
    """

    def __init__(self, session: Session, record: TaskRecord) -> None:
        self.id = record.id
        self._session = session
        self._latest = record
        self._version = -1
        # Reentrant: a signal handler may look at the task for which the thread beneath it is waiting.
        self._reading = threading.RLock()
        self._look_after_at = 0.0
        _made.add(self)

    def __repr__(self) -> str:
        return f"<Task {self.name} ({self.id}): {self.status}>"

    def _repr_html_(self) -> str:
        from flowlite.display import summaries

        return summaries.of_task(self)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the task {self.id} cannot be pickled or copied, as a process pool does with arguments and results: give "
            "the other process its id, and let Flow().get_task(id) find it there"
        )

    def __await__(self) -> Generator[Any, None, R_co]:
        """`await task` returns what `result()` returns, without blocking the event loop or using a thread of its own.

        Cancelling it, as a timeout of `asyncio.wait_for` does, ends only the waiting: the task itself continues.
        """
        return self._result_async().__await__()

    # State

    @property
    def name(self) -> str:
        """Its name, which other tasks may have too."""
        return self._latest.name

    @property
    def function(self) -> str:
        """Name of the function, or the command line."""
        return self._latest.function

    @property
    def call(self) -> str:
        """What it runs in full: the call with its arguments as Python code, or the command line.

        Long values are shortened, and the values of its secrets are masked.
        """
        record, paths = self._latest, self._session.paths(self.id)
        command = record.config.get("command")
        if command is not None:
            text = command if isinstance(command, str) else shlex.join(map(str, command))
        else:
            try:
                text = paths.call_text.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                # Its inputs were removed.
                text = record.function
        return redact.of_file(paths.secrets)(text)

    @property
    def provider(self) -> str:
        """Name of the provider, such as "local" or "aws"."""
        return self._latest.provider

    @property
    def status(self) -> str:
        """One of pending, provisioning, starting, running, stopping; finally completed, failed or cancelled."""
        return self.record.state

    @property
    def reason(self) -> str:
        """Why it is in this state, as a sentence; "" if there is nothing to say."""
        return self.record.reason

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1; 0 before the first."""
        return self.record.attempt

    @property
    def num_instances(self) -> int:
        """Nodes in the gang: in its present or last attempt, if it shrinks and grows; the most before the first."""
        return nodes_of(self._latest)

    @property
    def nodes(self) -> list[Node]:
        """Its nodes by rank, replaced nodes before their replacements; nodes without a rank come last."""
        found = [
            Node(
                i.node_rank,
                i.id,
                "ended" if i.state == "warm" and (i.ended_at or 0.0) <= clock.now() else i.state,
                str(i.data.get("address", "")),
                i.price_per_hour,
                i.ended_at if i.state == "warm" else None,
            )
            for i in self._session.store.instances(self.id)
        ]
        # The store returns them in the order of their launches.
        return sorted(found, key=lambda node: (node.rank is None, node.rank))

    @property
    def max_price_per_hour(self) -> float | None:
        """The cap in US dollars per instance and hour; without a cap, the price."""
        cap = self._latest.config.get("max_price_per_hour")
        return float(cap) if cap is not None else float(self._latest.plan["price_per_hour"])

    @property
    def estimated_cost(self) -> float:
        """What it has cost so far, in US dollars."""
        from flowlite.supervise.money.cost import cost_so_far

        return cost_so_far(self._session.store, self.id)

    @property
    def committed_cost(self) -> float:
        """What it has cost so far, in US dollars, with what its nodes that are kept warm will cost until they end."""
        from flowlite.supervise.money.cost import cost_of

        now = clock.now()
        charged = (
            cost_of([each], now if each.ended_at is None else max(now, each.ended_at))
            for each in self._session.store.instances(self.id)
        )
        return sum(charged, 0.0)

    @property
    def cost_is_upper_bound(self) -> bool:
        """Whether `estimated_cost` is an upper bound, because the end of one of its nodes was not observed."""
        from flowlite.supervise.money.cost import is_upper_bound

        return is_upper_bound(self._session.store.instances(self.id))

    @property
    def cost_by_day(self) -> dict[str, float]:
        """What it has cost so far, in US dollars, by local day ("2025-01-31")."""
        from flowlite.supervise.money.cost import cost_by_day

        return cost_by_day(self._session.store.instances(self.id), clock.now())

    @property
    def cost_per_hour(self) -> float:
        """What it costs per hour just now, in US dollars; 0 once its nodes are gone."""
        from flowlite.supervise.money.cost import rate_of

        return rate_of(self._session.store.instances(self.id))

    @property
    def created_at(self) -> datetime:
        """When it was submitted, in local time."""
        return _local(self._latest.created_at)

    @property
    def started_at(self) -> datetime | None:
        """When its workers started; None before that."""
        at = self.record.started_at
        return None if at is None else _local(at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended: its nodes are known to be gone. None before that."""
        at = self.record.finished_at
        return None if at is None else _local(at)

    @property
    def done(self) -> bool:
        """Whether it has completed, failed or been cancelled. Reading it restarts a supervisor that has died."""
        if self.record.final:
            return True
        self._look_after()
        return False

    @property
    def record(self) -> TaskRecord:
        """Its row in the store."""
        # Threads that wait for the same task must not replace a newer row by an older one.
        with self._reading:
            version = self._session.store.version()
            if version != self._version and not self._latest.final:
                self._latest = self._session.store.get_task(self.id)
                self._version = version
            return self._latest

    def news_of_recording(self) -> str:
        """Why nothing new about it can be recorded on this machine, or that it can be again.

        Told once for all tasks of this process; "" if there is nothing to tell.
        """
        return self._session.write_probe.news()

    def events(self) -> list[Event]:
        """Its history, oldest first: states, nodes, failures, each with a Unix time."""
        return self._session.store.events(self.id)

    # Logs

    def logs(
        self,
        node: int | None = None,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: float | str | datetime | timedelta | None = None,
        after: Mapping[str, int] | None = None,
        on_pause: Callable[[LogLine | None], None] | None = None,
    ) -> Logs:
        """The output of its workers. Prints as text, iterates as `LogLine`.

        Args:
            node: Only the lines of this node rank.
            rank: Only the lines of this global rank.
            follow: Wait for new lines until the task has ended and everything has been read.
            tail: Only this many of the last lines.
            since: Only lines seen since then: "5m", "10:30", a datetime, a timedelta or a Unix time.
            after: `position` of an earlier `Logs`, to continue exactly there.
            on_pause: Called whenever there is nothing new, with the unfinished line of a worker, or None.

        Raises:
            ConfigError: `since` or `tail` cannot be read.
            NotFound: The task has no such node or rank.
        """
        from flowlite.api.gang_shape import workers_per_node

        self._check_place(node, rank)
        if after is not None and not isinstance(after, Mapping):
            raise ConfigError(
                f"after={after!r} is no position; give `logs.position` of an earlier `Logs`"
            )
        return Logs(
            self._session.paths(self.id).logs,
            node=node,
            rank=rank,
            follow=follow,
            tail=tail,
            since=parse_since(since),
            after=after,
            ended=lambda: self.done,
            closing=self._closing,
            on_pause=on_pause,
            mask=redact.of_file(self._session.paths(self.id).secrets),
            label_ranks=workers_per_node(self._latest) > 1,
        )

    # Waiting for the end

    def wait(self, timeout: float | None = None, *, show_logs: bool | None = None) -> Task[R_co]:
        """Waits until the task has completed, failed or been cancelled, and returns the task itself.

        Args:
            timeout: Seconds to wait at most; None for no limit.
            show_logs: Show the task on standard error meanwhile; None for the setting of that name.

        Raises:
            TaskTimeout: It had not ended after `timeout` seconds. The task itself continues.
        """
        self._wait(timeout, show_logs, tell_end=True)
        return self

    async def wait_async(self, *, show_logs: bool | None = None) -> Task[R_co]:
        """As `wait`, for an event loop: `await asyncio.wait_for(task.wait_async(), 60)`.

        Args:
            show_logs: Show the task on standard error meanwhile; None for the setting of that name.
        """
        await self._final_async(show_logs, tell_end=True)
        return self

    def result(
        self,
        timeout: float | None = None,
        *,
        allow_pickle: bool = True,
        show_logs: bool | None = None,
    ) -> R_co:
        """Waits for the end and returns what rank 0 returned; None for a command.

        Args:
            timeout: Seconds to wait at most; None for no limit.
            allow_pickle: False loads no pickle at all: results that are not plain data are refused, and a worker's
                exception is raised as `RemoteError`.
            show_logs: Show the task on standard error meanwhile; None for the setting of that name.

        Raises:
            TaskFailed: It failed. If a worker raised an exception, that exception is raised instead, as its own type.
            TaskCancelled: It was cancelled.
            TaskTimeout: It had not ended after `timeout` seconds. The task itself continues.
            ResultUnavailable: There is no result that can be read.
        """
        return cast("R_co", self._values(timeout, allow_pickle, (0,), show_logs)[0])

    def results(
        self,
        timeout: float | None = None,
        *,
        allow_pickle: bool = True,
        show_logs: bool | None = None,
    ) -> list[R_co]:
        """As `result`, for all ranks: element i is what rank i returned."""
        from flowlite.api.gang_shape import world_size

        ranks = range(world_size(self._latest))
        values = self._values(timeout, allow_pickle, ranks, show_logs)
        return [cast("R_co", value) for value in values]

    def result_of(
        self,
        rank: int,
        timeout: float | None = None,
        *,
        allow_pickle: bool = True,
        show_logs: bool | None = None,
    ) -> R_co:
        """As `result`, for one rank. Raises NotFound if there is no such rank."""
        self._check_place(None, rank)
        return cast("R_co", self._values(timeout, allow_pickle, (rank,), show_logs)[0])

    def exception(
        self,
        timeout: float | None = None,
        *,
        allow_pickle: bool = True,
        show_logs: bool | None = None,
    ) -> Exception | None:
        """Waits for the end and returns what `result()` would raise; None if the task completed.

        Results and logs that could not be fetched at the end are fetched first, from nodes that answer now.
        """
        self._wait(timeout, show_logs, tell_end=False)
        return self._error(self._outcomes(allow_pickle))

    def failures(self, *, allow_pickle: bool = True) -> dict[int, Exception]:
        """The failure of each failed rank by global rank, in the order in which they happened. Does not wait."""
        from flowlite.api.failures import failures_of

        return failures_of(self.events(), self._outcomes(allow_pickle))

    # Actions

    def cancel(self) -> bool:
        """Requests the cancellation of the task and returns at once; `wait()` waits for its end.

        Returns:
            False if it had ended already.
        """
        from flowlite.supervise.process.launch import cancel

        asked = cancel(self._session.store, self._session.home, self.id)
        self._version = -1
        return asked

    def resume(self) -> None:
        """Continues a task that lost its supervisor before it had machines; it requests them again.

        Raises:
            ConfigError: It has ended, or is running already.
        """
        from flowlite.api import import_guard
        from flowlite.supervise.process.launch import resume

        import_guard.refuse("has a task go on")
        resume(self._session.store, self._session.home, self.id)
        self._version = -1

    @property
    def needs_resume(self) -> bool:
        """Whether it waits for `resume()`: it has no supervisor and no machines, and is not to launch any unasked."""
        from flowlite.supervise.process.resuming import needs_resume
        from flowlite.supervise.record.process_identity import has_supervisor

        return needs_resume(self._session.store, self.record) and not has_supervisor(
            self._session.home, self.id
        )

    def exec(
        self, command: str | Sequence[str], node: int = 0, *, timeout: float | None = None
    ) -> Completed:
        """Runs a command on a node, in the environment of its first worker.

        After the end of a task on this machine, this machine stands in for its nodes, without their files.

        Args:
            command: A string is run by the shell; a sequence is run as it is.
            node: Node rank.
            timeout: Seconds after which the command is killed; None for no limit.

        Returns:
            The exit status, negative for a signal, and its output as bytes (`code`, `stdout`, `stderr`).

        Raises:
            NotFound: There is no such node (yet).
            NodeUnreachable: The node does not answer.
            TimeoutError: Not done after `timeout` seconds; the command was killed.
        """
        self._check_place(node, None)
        from flowlite.api.node_access import access

        with access(self._session, self.record, node) as there:
            return there.connection.run(there.argv(command), timeout=timeout)

    def reach(self, node: int = 0) -> AbstractContextManager[NodeAccess]:
        """A connection to a node and the means to run commands there, for `flow ssh`. Raises as `exec` does."""
        from flowlite.api.node_access import access

        self._check_place(node, None)
        return access(self._session, self.record, node)

    # Internals

    def _look_after(self) -> None:
        """Restarts its supervisor if that has died; looks at most once a second."""
        now = time.monotonic()
        if now >= self._look_after_at:
            self._look_after_at = now + ENSURE_EVERY
            self._session.ensure(self.id)

    def _wait(self, timeout: float | None, show_logs: bool | None, *, tell_end: bool) -> bool:
        """As `wait`. With `tell_end`, a failure is shown here, since no exception will be raised for it.

        Returns:
            Whether the task, and with it the output of its workers, was shown.
        """
        from flowlite.display import waiting

        timeout = waiting.checked_timeout(timeout)
        display = waiting.display_in_program(self, show_logs)
        if display is not None:
            display.announce()
        # Imported while the task runs, since reading its results needs them.
        from flowlite.api import failures, late_results, outcomes

        _ = failures, late_results, outcomes
        with trace.span("wait for the end"):
            ended = waiting.wait_for_end(self, display, timeout)
        if not ended:
            raise TaskTimeout(
                f"task {self.name} ({self.id}) is still {self.status} after {timeout:g} s, and goes on; "
                f"wait longer, or end it with `flow cancel {self.id}`"
            )
        waiting.leave(self, display, tell_end=tell_end)
        return display is not None

    async def _final_async(self, show_logs: bool | None, *, tell_end: bool) -> bool:
        """As `_wait`, for an event loop."""
        from flowlite.api import async_wait
        from flowlite.display import waiting

        display = waiting.display_in_program(self, show_logs)
        if display is not None:
            display.announce()
        await async_wait.until_final(self, display)
        waiting.leave(self, display, tell_end=tell_end)
        return display is not None

    async def _result_async(self) -> R_co:
        import asyncio

        seen = await self._final_async(None, tell_end=False)

        def values() -> tuple[list[Any], StopIteration | None]:
            try:
                return self._values_now(True, (0,), seen), None
            except StopIteration as error:
                # No future can hold it, so that the await would never end.
                return [], error

        # This reads files, and may fetch files from nodes.
        found, stopped = await asyncio.to_thread(values)
        if stopped is not None:
            raise stopped
        return cast("R_co", found[0])

    def _closing(self) -> str:
        record = self.record
        return record.reason if record.state == "failed" else ""

    def _outcomes(self, allow_pickle: bool) -> Outcomes:
        from flowlite.api.outcomes import Outcomes

        return Outcomes(self.record, self._session.paths(self.id), allow_pickle)

    def _values(
        self,
        timeout: float | None,
        allow_pickle: bool,
        ranks: Sequence[int],
        show_logs: bool | None,
    ) -> list[Any]:
        """What the ranks returned, once the task has completed; raises the exception that it failed with."""
        seen = self._wait(timeout, show_logs, tell_end=False)
        return self._values_now(allow_pickle, ranks, seen)

    def _values_now(self, allow_pickle: bool, ranks: Sequence[int], seen: bool) -> list[Any]:
        """As `_values`, for a final task. `seen` says whether the output of its workers was shown."""
        outcomes = self._outcomes(allow_pickle)
        with trace.span("look for an error"):
            error = self._error(outcomes, seen=seen)
        if error is not None:
            raise error
        if outcomes.record.call.get("kind") != "function":
            return [None] * len(ranks)
        with trace.span("read results"):
            return [outcomes.of(rank).unwrap() for rank in ranks]

    def _error(self, outcomes: Outcomes, *, seen: bool = False) -> Exception | None:
        """The exception of the final task. Missing results and logs are fetched first, from nodes that answer now."""
        from flowlite.api import late_results
        from flowlite.api.failures import exception_of

        completed = outcomes.record.state == "completed"
        problems = [] if completed else late_results.bring(self._session, outcomes.record)
        error = exception_of(self.events(), outcomes, seen=seen)
        if error is not None:
            for problem in problems:
                error.add_note(f"not here yet: {problem}")
        return error

    def _check_place(self, node: int | None, rank: int | None) -> None:
        from flowlite.api.gang_shape import workers_per_node, world_size

        for word, number, size in (
            ("node", node, self.num_instances),
            ("rank", rank, world_size(self._latest)),
        ):
            if number is None:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise ConfigError(f"{word}={number!r} is no number; give an int, such as {word}=0")
            if not 0 <= number < size:
                there = f"only {word} 0" if size == 1 else f"{word}s 0 to {size - 1}"
                raise NotFound(
                    f"task {self.name} ({self.id}) has no {word} {number}: it has {there}"
                )
        if node is not None and rank is not None:
            its_node = rank // workers_per_node(self._latest)
            if its_node != node:
                raise NotFound(f"rank {rank} of task {self.name} ({self.id}) is on node {its_node}")


class Ends:
    """Tells which of many tasks have ended, with one question to the store for all of them."""

    def __init__(self) -> None:
        self._version = -1
        self._unfinished: set[str] = set()

    def among(self, tasks: Sequence[Task[Any]]) -> list[Task[Any]]:
        """Returns the tasks that have ended, and restarts supervisors that have died, as `Task.done` does."""
        if not tasks:
            return []
        store = tasks[0]._session.store
        version = store.version()
        if version != self._version:
            self._unfinished = store.unfinished_of([task.id for task in tasks])
            self._version = version
        ended = []
        for task in tasks:
            if task.id in self._unfinished:
                task._look_after()
            elif task.done:
                ended.append(task)
        return ended


_made: weakref.WeakSet[Task[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock, and the store has another connection, which counts anew.
    for each in list(_made):
        each._reading = threading.RLock()
        each._version = -1


os.register_at_fork(after_in_child=_after_fork)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone()
