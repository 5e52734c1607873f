"""Submits the tasks of one sweep as one job array, once all of them are ready; each task is bound to its element.

Every task has a supervisor and a launch of its own. Each launch records that it is ready, and the launch that finds all
of them ready (or has waited long enough) submits the array for those that are. The submission is recorded in a ledger
of its own, FLOW_HOME/slurm/arrays, before `sbatch` is called:

    array-ID    one launch: notes "members" {index: task, token, seen, shape}, "came" when the last one came
                one call: parameters "indices"; ids: the number of the array

An element has the id `NUMBER_INDEX`. A launch takes its element over, with a call of its own, in the same way as a
requeued job. A launch that comes too late, or has other requirements than the others, gets a job of its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.provider import LaunchPending
from flowlite.state import clock
from provider_adapters.durable import make_directory
from provider_adapters.rented.ledger import MADE, REFUSED, Call, Launch, Ledger
from provider_adapters.slurm import shared
from provider_adapters.slurm.job_submission import JobSubmission

if TYPE_CHECKING:
    from provider_adapters.slurm.context import SlurmContext

PATIENCE_SECONDS = 20.0
"""Seconds after the last task joined until the array is submitted for those that are ready."""
SEEN_SECONDS = 30.0
"""A task that has not been seen for this many seconds does not count as ready."""
_PAUSE = 0.3
_DAY_SECONDS = 86400.0
_KEEP_SECONDS = 30 * _DAY_SECONDS
_PREFIX = "array-"
# Fields that must be the same for all elements.
_SHAPE = (
    *("login", "directives", "extra", "requeue", "cpus", "minutes", "container", "shared"),
    *("node_dir", "program", "lease", "signal_seconds", "least"),
)

ScriptOf = Callable[..., str]


class Arrays:
    """The arrays of one FLOW_HOME."""

    def __init__(self, place: SlurmContext) -> None:
        self._tasks = place.ledger
        self._place = copy.copy(place)
        self._place.ledger = self._ledger = Ledger(place.directory / "arrays")
        self._submission = JobSubmission(self._place)
        # By token: a task's later launches do not change which one was its first.
        self._is_first: dict[str, bool] = {}

    def bind(self, launch: Launch, script: ScriptOf) -> Call | None:
        """The call that binds a launch to its element; None if the launch gets a job of its own.

        The caller holds the launch in the ledger.

        Args:
            script: Renders the batch script, as `Launching.script`.

        Raises:
            LaunchPending: Not yet: other tasks are waited for, or the outcome of the submission is not known.
            ProviderError: Slurm refused the array.
        """
        if not self._asks(launch):
            return None
        token = _token(launch)
        with self._ledger.hold(token):
            size = int(launch.frozen["array"]["size"])
            array = self._ledger.begin(token, token, size, lambda: dict(launch.frozen))
            if array.ended:
                # All tasks that were there before have ended, perhaps long ago.
                return None
            if not array.calls:
                array = self._join(array, launch)
                self._submit(array, launch, script)
            elif not self._submission.settle(array, repeat=True):
                array = self._ledger.read(token) or array
                assert array.open_call is not None
                self._send(array, launch, array.open_call, script)
            return self._take(launch)

    def expects(self, launch: Launch) -> bool:
        """Whether a launch without a job may still get an element. One that is known already is taken over."""
        if launch.ended or launch.calls or not self._asks(launch):
            return False
        token = _token(launch)
        # In the order of `bind`, which is called with the launch held: otherwise each would wait for the other.
        with self._tasks.hold(launch.token), self._ledger.hold(token):
            launch = self._tasks.read(launch.token) or launch
            if launch.ended or launch.calls:
                return False
            array = self._ledger.read(token)
            if array is None or array.ended:
                return False
            if not array.calls:
                return self._is_counted(array, launch)
            if _index(launch) not in _indices(array):
                return False
            self._submission.settle(array, repeat=False)
            array = self._ledger.read(token) or array
            return array.open_call is not None or self._take(launch) is not None

    def confirm(self, launch: Launch) -> None:
        """Cancels what was submitted twice of the array that has the element of a launch."""
        if any(call.parameters.get("doubtful") for call in launch.calls):
            token = _token(launch)
            with self._ledger.hold(token):
                if (array := self._ledger.read(token)) is not None:
                    self._submission.confirm(array)

    def task_of(self, name: str, job_id: str) -> str:
        """The task of an element, by the name in its comment and its id; for any other job, the name itself."""
        array = self._ledger.read(name) if name.startswith(_PREFIX) else None
        members = array.notes.get("members", {}) if array else {}
        member = members.get(job_id.partition("_")[2])
        return str(member["task"]) if member else name

    def forget_old_daily(self) -> None:
        """As `forget_old`, once a day. `flow gc` does so, too, and may never be called."""
        mark = self._place.directory / "tidied"
        with suppress(OSError, ProviderError):
            if not mark.exists() or not 0 <= clock.wall() - mark.stat().st_mtime < _DAY_SECONDS:
                make_directory(mark.parent)
                mark.touch(mode=0o600)
                self.forget_old()

    def forget_old(self) -> None:
        """Removes launches that ended long ago, and arrays whose tasks have all ended. Raises ProviderError."""
        for array in self._ledger.launches():
            if not array.calls and clock.now() - array.at < _DAY_SECONDS:
                # Those of its tasks that are there have ended, and others may come.
                continue
            members = array.notes.get("members", {}).values()
            launches = [self._tasks.read(str(each["token"])) for each in members]
            over = all(each is None or each.ended for each in launches)
            if over and not array.ended and array.open_call is None:
                self._ledger.end(array.token)
        self._ledger.prune(_KEEP_SECONDS)
        self._tasks.prune(_KEEP_SECONDS)

    # Helpers

    def _asks(self, launch: Launch) -> bool:
        """Whether a launch belongs to an array. Only the first launch of a task does; a retry is a job of its own."""
        if not launch.frozen.get("array"):
            return False
        if launch.token not in self._is_first:
            first = min(self._tasks.launches(launch.task), key=lambda each: each.at)
            self._is_first[launch.token] = first.token == launch.token
        return self._is_first[launch.token]

    def _join(self, array: Launch, launch: Launch) -> Launch:
        """Records that a launch is ready. Raises LaunchPending while others are not."""
        now, index = clock.now(), _index(launch)
        members: dict[str, Any] = dict(array.notes.get("members", {}))
        came = now if index not in members else float(array.notes["came"])
        members[index] = {
            "task": launch.task,
            "token": launch.token,
            "seen": now,
            "shape": _shape(launch),
        }
        array = self._ledger.note(array.token, members=members, came=came)
        there = len(_there(array, launch))
        if there < array.count and now - came < PATIENCE_SECONDS:
            raise LaunchPending(
                f"the tasks of its sweep become one array: {there} of {array.count} are there",
                _PAUSE,
            )
        return array

    def _is_counted(self, array: Launch, launch: Launch) -> bool:
        """Whether an array that is still to be submitted may have an element for a launch. One that ends has none."""
        members, index = dict(array.notes.get("members", {})), _index(launch)
        if index not in members or clock.now() - members[index]["seen"] >= SEEN_SECONDS:
            return False
        if not launch.notes.get("ending"):
            return True
        del members[index]
        self._ledger.note(array.token, members=members)
        return False

    def _submit(self, array: Launch, launch: Launch, script: ScriptOf) -> None:
        frozen = array.frozen
        proved = bool(frozen["shared"]) and self._place.proof(frozen["login"]).of(frozen["shared"])
        where = str(frozen["asked"].get("partition", "")) or "the default partition"
        asked = {"indices": sorted(_there(array, launch), key=int), "proved": bool(proved)}
        call = self._ledger.intend(array.token, where, asked)
        self._send(array, launch, call, script)

    def _send(self, array: Launch, launch: Launch, call: Call, script: ScriptOf) -> None:
        frozen = array.frozen
        program = Path(frozen["agent"])
        login = self._place.login(frozen["login"])
        shared.bring(login, frozen["login_dir"], program, frozen["program"], frozen["nonce"])
        text = script(
            replace(array, count=launch.count),
            call.name,
            embedded=not call.parameters["proved"],
            array=elements(call.parameters["indices"], frozen["array"]),
        )
        self._submission.submit(array, call, text)

    def _take(self, launch: Launch) -> Call | None:
        """Records which element is this launch's."""
        array = self._ledger.read(_token(launch))
        call = array.calls[-1] if array and array.calls else None
        if array is None or call is None or call.state != MADE:
            return None
        if _index(launch) not in _indices(array):
            return None
        element = f"{call.ids[0]}_{_index(launch)}"
        asked = {"adopt": element, **({"doubtful": True} if array.notes.get("doubtful") else {})}
        mine = self._tasks.intend(launch.token, call.where, asked)
        return self._tasks.made(launch.token, mine.name, [element]).call(mine.name)


def elements(indices: list[str], asked: Mapping[str, Any]) -> str:
    """The value of `--array`: ranges, and how many may run at a time."""
    spans: list[list[int]] = []
    for index in sorted(map(int, indices)):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    written = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    at_once = limit(asked, len(indices))
    return f"{written}%{at_once}" if at_once else written


def limit(asked: Mapping[str, Any], count: int) -> int:
    """How many of `count` elements may run at a time; 0 if all of them may."""
    at_once = int(asked.get("at_once") or 0)
    return at_once if at_once < count else 0


def _token(launch: Launch) -> str:
    return f"{_PREFIX}{launch.frozen['array']['id']}"


def _index(launch: Launch) -> str:
    return str(launch.frozen["array"]["index"])


def _indices(array: Launch) -> list[str]:
    """The elements that were submitted, as far as is known."""
    made = [each for each in array.calls if each.state != REFUSED]
    return list(made[-1].parameters.get("indices", ())) if made else []


def _there(array: Launch, launch: Launch) -> list[str]:
    """Indices of the tasks that are ready and have the same requirements."""
    now, wanted = clock.now(), _shape(launch)
    return [
        index
        for index, each in array.notes.get("members", {}).items()
        if now - each["seen"] < SEEN_SECONDS and each["shape"] == wanted
    ]


def _shape(launch: Launch) -> str:
    told = [launch.count, *(launch.frozen.get(name) for name in _SHAPE)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
