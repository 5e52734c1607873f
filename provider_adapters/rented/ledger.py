"""The ledger: a durable record of what a cloud was asked to create, written before each request.

    FLOW_HOME/<provider>/launches/<token>.json      one file per launch token, 0600

A launch is a sequence of calls (one per zone or bid), of which at most one may be open. A call is

    intended    recorded; whether it had an effect is not known
    made        it had an effect: these ids exist, or existed
    refused     it certainly had no effect

An intended call is settled before anything else is done for its task, by repeating the very same call under the same
name, or by looking for that name at the cloud. Every change is on disk, directory included, before the method returns.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import file_lock
from flowlite.provider import Instance
from flowlite.settings.provider_settings import Keys, ProviderSettings
from flowlite.state import clock
from provider_adapters.durable import make_directory, write_durably

INTENDED, MADE, REFUSED = "intended", "made", "refused"
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 64
# The task of a launch is the second field of its file, after a token that is the name of the file.
_TASK = re.compile(rb'"task": "([\w-]+)"', re.ASCII)
_HEAD = 1024


class Unsettled(ProviderError):
    """An earlier call has an unknown outcome and has to be settled first."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request that may create something.

    Attributes:
        where: Zone, region, or anything else that distinguishes this call from the launch's others.
        name: Idempotency token or unique name at the cloud: at most 64 characters of [A-Za-z0-9._-], never reused.
        parameters: Frozen parameters of the request: a repetition sends exactly these. Dropped once it was refused.
        state: "intended", "made" or "refused".
        at: Unix time when it was recorded.
        ids: The ids of what it created.
        detail: The adapter's notes on the outcome, JSON only.
        hash: Not used. Supervisors that were started before an upgrade read no file of the ledger without it.
    """

    where: str
    name: str
    parameters: dict[str, Any]
    state: str = INTENDED
    at: float = 0.0
    ids: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    hash: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Launch:
    """The record of one launch token.

    Attributes:
        token: The token of the launch intent.
        task: The id of the task that has its machines, or had them last (`kept_gangs.py`).
        count: Number of machines.
        at: Unix time when it began.
        frozen: What all calls of the launch share (image, user data, tags, keys), decided once.
        calls: In the order in which they were made.
        notes: The adapter's progress (when machines were first listed, addresses, what died), JSON only.
        ended: Whether the cloud's listing has shown that nothing of it exists any more.
        account: The settings that identify the account and endpoint of the launch; without them nothing of it can be
            found again.
    """

    token: str
    task: str
    count: int
    at: float
    frozen: dict[str, Any]
    calls: tuple[Call, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    account: dict[str, Any] = field(default_factory=dict)

    @property
    def open_call(self) -> Call | None:
        """The call whose outcome is not known."""
        return next((call for call in self.calls if call.state == INTENDED), None)

    @property
    def made(self) -> Call | None:
        """The last call that created something."""
        return next((call for call in reversed(self.calls) if call.state == MADE), None)

    @property
    def current(self) -> Call | None:
        """The last call that created something, unless the adapter has noted that it is "dropped"."""
        made = (call for call in reversed(self.calls) if call.state == MADE)
        return next((call for call in made if not call.detail.get("dropped")), None)

    def call(self, name: str) -> Call:
        """The call of that name."""
        return next(each for each in self.calls if each.name == name)

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids that were ever created."""
        return tuple(name for call in self.calls for name in call.ids)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        """Reads a file of the ledger."""
        # Files outlive the version that wrote them, and one that cannot be read keeps all machines of the provider from
        # being given back. An unexpected field is an error.
        calls = tuple(Call(**{**call, "ids": tuple(call["ids"])}) for call in data["calls"])
        return cls(**{**data, "calls": calls})


class Ledger:
    """The launches of one provider, account and FLOW_HOME."""

    def __init__(self, directory: Path, account: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            directory: FLOW_HOME/<provider>/launches.
            account: The settings that identify the account; launches in other accounts are ignored.
        """
        self._directory = directory
        self._account = dict(account or {})
        self._held = threading.local()
        # The tasks of the launches that are known to have ended, by token.
        self._ended: dict[str, str] = {}

    # Reading

    def read(self, token: str) -> Launch | None:
        """The launch of a token; None if there is none. Raises ProviderError."""
        path = self._path(token)
        try:
            return Launch.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProviderError(
                f"{path} cannot be read ({error}). It says what was rented under {token}: look with `flow gc` for "
                "what exists, and remove the file when nothing does"
            ) from error

    def launches(self, task: str | None = None, *, everywhere: bool = False) -> list[Launch]:
        """The launches of one task, or all, the oldest first.

        Args:
            everywhere: Include other accounts: two sets of settings may lead to the same account.
        """
        found = self._read_all(lambda of, _: task is not None and of not in ("", task))
        return self._ours((each for each in found if task in (None, each.task)), everywhere)

    def live(self, *, everywhere: bool = False) -> list[Launch]:
        """The launches that have not ended, the oldest first; as `launches`."""
        found = self._read_all(lambda _, ended: ended)
        return self._ours((each for each in found if not each.ended), everywhere)

    @property
    def is_used(self) -> bool:
        """Whether anything was ever launched."""
        return bool(self._tokens())

    # Writing

    def begin(
        self, token: str, task: str, count: int, freeze: Callable[[], dict[str, Any]]
    ) -> Launch:
        """The launch of a token, recorded if it is new; `freeze` is called only then."""
        with self.hold(token):
            known = self.read(token)
            if known is not None:
                return known
            launch = Launch(token, task, count, clock.now(), freeze(), account=self._account)
            self._write(launch)
            return launch

    def intend(self, token: str, where: str, parameters: Mapping[str, Any]) -> Call:
        """Records that a call is about to be made. Once this returns, it may be made.

        Raises:
            Unsettled: Another call of this launch may have had an effect.
        """
        with self._changing(token) as (launch, write):
            if (open_call := launch.open_call) is not None:
                raise Unsettled(
                    f"{token}: whether {open_call.name} ({open_call.where}) made anything is not known yet"
                )
            ending = f"-{len(launch.calls) + 1}-{secrets.token_hex(4)}"
            name = f"{token[: _LONGEST_NAME - len(ending)]}{ending}"
            call = Call(where, name, json.loads(json.dumps(parameters)), at=clock.now())
            write(replace(launch, calls=(*launch.calls, call)))
            return call

    def made(
        self, token: str, name: str, ids: Sequence[str], detail: Mapping[str, Any] | None = None
    ) -> Launch:
        """Records that a call had its effect. May be repeated; ids and detail are then added."""
        return self._settle(token, name, MADE, ids, detail)

    def refused(self, token: str, name: str, detail: Mapping[str, Any] | None = None) -> Launch:
        """Records that a call certainly had no effect."""
        return self._settle(token, name, REFUSED, (), detail)

    def note(self, token: str, **notes: Any) -> Launch:
        """Updates the notes; a value of None removes a note."""
        with self._changing(token) as (launch, write):
            changed = {k: v for k, v in {**launch.notes, **notes}.items() if v is not None}
            return write(replace(launch, notes=changed))

    def hand_over(self, token: str, task: str, **notes: Any) -> Launch:
        """Makes a launch that of another task, and updates its notes, in one step."""
        with self._changing(token) as (launch, write):
            return write(replace(launch, task=task, notes={**launch.notes, **notes}))

    def forget(self, token: str, *names: str) -> Launch:
        """Removes values from `frozen` that are no longer needed, such as user data with a key in it."""
        with self._changing(token) as (launch, write):
            kept = {key: value for key, value in launch.frozen.items() if key not in names}
            return write(replace(launch, frozen=kept))

    def end(self, token: str) -> Launch:
        """Marks a launch as ended, once the listing has shown that nothing of it exists.

        Parameters are dropped; ids and outcomes stay.

        Raises:
            Unsettled: A call may have had an effect.
        """
        with self._changing(token) as (launch, write):
            if launch.open_call is not None:
                raise Unsettled(
                    f"{token}: whether {launch.open_call.name} made anything is not known"
                )
            calls = tuple(replace(call, parameters={}) for call in launch.calls)
            return write(replace(launch, calls=calls, frozen={}, ended=True))

    def drop(self, token: str) -> None:
        """Removes a launch for which nothing was created, if it exists. The caller must hold the launch.

        Raises:
            Unsettled: A call may have had an effect.
        """
        launch = self.read(token)
        if launch is None:
            return
        if any(call.state != REFUSED for call in launch.calls):
            raise Unsettled(f"{token}: something was made, or may have been")
        self._path(token).unlink()
        self._lock_path(token).unlink()

    def prune(self, older_than: float) -> None:
        """Removes launches that have ended and are older than `older_than` seconds."""
        for launch in self.launches():
            if launch.ended and clock.now() - launch.at > older_than:
                with self.hold(launch.token), suppress(FileNotFoundError):
                    self._path(launch.token).unlink()
                    self._lock_path(launch.token).unlink()

    @contextmanager
    def hold(self, token: str, patience: float = 90.0) -> Iterator[None]:
        """Holds the lock of a token, so that one process at a time works on it. Reentrant within a thread.

        Hold it around listing, calling and settling, so that `flow gc` does not settle what a supervisor is doing.

        Raises:
            ProviderError: Another process did not release it within `patience` seconds.
        """
        mine: set[Path] = self._held.__dict__.setdefault("paths", set())
        path = self._lock_path(token)
        if path in mine:
            yield
            return
        descriptor = self._lock(path, token, patience)
        mine.add(path)
        try:
            yield
        finally:
            mine.remove(path)
            os.close(descriptor)

    # Helpers

    def _read_all(self, is_unwanted: Callable[[str, bool], bool]) -> Iterator[Launch]:
        """Yields the launches, without those whose files show that they are unwanted.

        Launches are kept for weeks after their end, and to parse thousands of them takes ten times as long as to look
        at their files. The files of those that have ended, which do not change any more, are looked at once. A damaged
        file shows nothing, so that `read` raises for it.

        Args:
            is_unwanted: Called with the task, "" if it is not known, and whether the launch certainly has ended.
        """
        directory = str(self._directory)
        for token in self._tokens():
            if (of := self._ended.get(token)) is not None and is_unwanted(of, True):
                continue
            with suppress(OSError), io.FileIO(f"{directory}/{token}.json") as file:
                content = file.read()
                of, ended = _task_in(content), _has_ended(content)
                if of and ended:
                    self._ended[token] = of
                if is_unwanted(of, ended):
                    continue
            if launch := self.read(token):
                yield launch

    def _tokens(self) -> list[str]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        found = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(name for name in found if name and not name.startswith("."))

    def _ours(self, found: Iterable[Launch], everywhere: bool) -> list[Launch]:
        mine = (each for each in found if everywhere or each.account == self._account)
        return sorted(mine, key=lambda launch: launch.at)

    def _settle(
        self,
        token: str,
        name: str,
        state: str,
        ids: Sequence[str],
        detail: Mapping[str, Any] | None,
    ) -> Launch:
        with self._changing(token) as (launch, write):
            call = next((each for each in launch.calls if each.name == name), None)
            if call is None:
                raise ProviderError(f"{token}: no call {name} was ever written down")
            if call.state not in (INTENDED, state):
                raise ProviderError(f"{token}: {name} was {call.state} and cannot become {state}")
            known = tuple(dict.fromkeys((*call.ids, *ids)))
            settled = replace(
                call,
                # What was refused is not repeated. A launch that waits for room makes thousands of such calls.
                parameters={} if state == REFUSED else call.parameters,
                state=state,
                ids=known,
                detail={**call.detail, **(detail or {})},
            )
            calls = tuple(settled if each.name == name else each for each in launch.calls)
            return write(replace(launch, calls=calls))

    @contextmanager
    def _changing(self, token: str) -> Iterator[tuple[Launch, Callable[[Launch], Launch]]]:
        with self.hold(token):
            launch = self.read(token)
            if launch is None:
                raise ProviderError(f"nothing was begun under the token {token}")
            yield launch, self._write

    def _write(self, launch: Launch) -> Launch:
        path = self._path(launch.token)
        try:
            write_durably(path, json.dumps(asdict(launch)))
        except OSError as error:
            raise ProviderError(f"{path} cannot be written: {error.strerror or error}") from error
        return launch

    def _lock(self, path: Path, token: str, patience: float) -> int:
        """Returns a descriptor that holds the lock. Raises ProviderError."""
        found: list[int] = []

        def attempt() -> bool:
            try:
                make_directory(self._directory)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ProviderError(f"{path} cannot be made: {error.strerror or error}") from error
            if not _locked(descriptor, path):
                os.close(descriptor)
                return False
            found.append(descriptor)
            return True

        if not file_lock.wait(attempt, patience, monotonic=clock.monotonic, sleep=clock.sleep):
            raise ProviderError(
                f"another process has been busy with the launch {token} for {patience:.0f} s; try again"
            )
        return found[0]

    def _path(self, token: str) -> Path:
        if not _TOKEN.fullmatch(token):
            raise ProviderError(f"{token!r} is not a launch token")
        return self._directory / f"{token}.json"

    def _lock_path(self, token: str) -> Path:
        return self._path(token).with_suffix(".lock")


def _task_in(content: bytes) -> str:
    """The task in the file of a launch; "" if the file does not show it."""
    found = _TASK.search(content, 0, _HEAD)
    return found[1].decode() if found else ""


def _has_ended(content: bytes) -> bool:
    """Whether a file certainly is that of a launch that has ended. Only the settings of its account come after that."""
    return content.rpartition(b'"ended": ')[2].startswith(b"true")


def _locked(descriptor: int, path: Path) -> bool:
    """Whether the lock was acquired, and the file is still the one at that path."""
    try:
        return file_lock.take(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def accounts(directory: Path, provider: str) -> list[ProviderSettings]:
    """The accounts of all launches that have not ended, as settings of the provider. Torn files are skipped."""
    found: dict[str, ProviderSettings] = {}
    for path in sorted(directory.glob("[!.]*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            launch = Launch.from_json(json.loads(path.read_bytes()))
            if not launch.ended:
                origins: dict[Keys, str] = {(key,): str(path) for key in launch.account}
                each = ProviderSettings(provider, launch.account, origins)
                found.setdefault(json.dumps(launch.account, sort_keys=True), each)
    return list(found.values())


def over_of(launch: Launch) -> list[Instance]:
    """The machines that an adapter has noted when it closed a launch, as they ended; an empty list for others."""
    return [Instance.from_json(each) for each in launch.notes.get("over", ())]


def hash_of(parameters: Mapping[str, Any]) -> str:
    """SHA-256 of parameters, independent of their order."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
