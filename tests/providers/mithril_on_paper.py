"""The adapter against the fake API, with machines that exist on paper: what they are reached by is played here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flowlite.api.adapters import settings_here
from flowlite.connect.values import Completed
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.spec import TaskConfig
from flowlite.testing.cloud.mithril.box import PaperMithril
from provider_adapters.mithril import MithrilProvider
from provider_adapters.rented.first_contact import MachineAccess, NotYet, ReadyMachine

Value = TypeVar("Value")
TASK = "tabcdefghij"
SECONDS = 20.0
REGION = "us-central1-a"
H100 = "h100-80gb.sxm.8x"


class Shell:
    """A connection that notes what is run."""

    def __init__(self, ran: list[tuple[list[str], bytes]]) -> None:
        self._ran = ran

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, argv: Sequence[str], *, input: bytes | None = None, timeout: float | None = None
    ) -> Completed:
        self._ran.append((list(argv), input or b""))
        return Completed(0, b"", b"")


class Doors:
    """Machines that answer at once, unless they are said not to.

    Attributes:
        silent: Reason by stage of those that do not answer: {"silent": "…"} for all.
        ran: What was run on machines, with its input.
    """

    def __init__(self) -> None:
        self.silent: dict[str, str] = {}
        self.ran: list[tuple[list[str], bytes]] = []
        self.forgotten: list[str] = []

    def reach(
        self,
        places: Sequence[MachineAccess],
        *,
        task: str,
        minor: str | None = None,
        agent: Path | None = None,
    ) -> list[ReadyMachine | NotYet]:
        for stage, why in self.silent.items():
            return [NotYet(place.id, stage, why) for place in places]
        return [ReadyMachine(place.id, self._data(place, task)) for place in places]

    def _data(self, place: MachineAccess, task: str) -> dict[str, Any]:
        return {
            "place": {"id": place.id, "address": place.address, "port": place.port},
            "home": f"/root/.flowlite/tasks/{task}-{place.id}",
            "root": "/root/.flowlite",
            "python": "/usr/bin/python3",
            "pythons": [["/usr/bin/python3", "3.11.7"]],
            "private_address": "10.99.9.9",
        }

    def require_jump(self, jump: str, table: str) -> None: ...

    def connect(self, data: dict[str, Any]) -> Shell:
        return Shell(self.ran)

    def forget(self, instance_id: str) -> None:
        self.forgotten.append(instance_id)


class Paper:
    """One client of one account."""

    def __init__(self, cloud: PaperMithril, home: Path) -> None:
        self.cloud = cloud
        self.home = home
        self.doors = Doors()
        self.provider = self.make()

    def make(self, home: Path | None = None) -> MithrilProvider:
        """What another process has: the same files, and nothing else."""
        made = MithrilProvider(home or self.home, settings_here("mithril"))
        made._place.contact = self.doors  # type: ignore[assignment]
        return made

    def configure(self, **settings: Any) -> None:
        """Writes `[mithril]`; what is asked from here on goes by it."""
        lines = [f"{k} = {json.dumps(v)}" for k, v in {"region": REGION, **settings}.items()]
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text("\n".join(["[mithril]", *lines, ""]))
        self.provider = self.make()

    def live(self) -> list[dict[str, Any]]:
        """Bids that may still cost something, by the cloud's own account."""
        return self.cloud.live_bids()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Somebody else does something with the account's key."""
        import httpx

        headers = {"Authorization": f"Bearer {self.cloud.facts()['api_key']}"}
        url = f"{self.cloud.url}{path}"
        assert httpx.request(method, url, json=body, headers=headers).is_success

    def change(self, **changes: Any) -> None:
        """Somebody else changes the one bid there is."""
        (bid,) = self.live()
        self.request("PATCH", f"/v2/spot/bids/{bid['fid']}", changes)

    def intend(
        self, count: int = 2, number: int = 1, task: str = TASK, **options: Any
    ) -> LaunchIntent:
        """An intent, as the supervisor makes it."""
        given = {"command": ["true"], "gpu": "h100:8", "num_instances": count, **options}
        plan = self.provider.plan(TaskConfig(provider="mithril", **given))
        return LaunchIntent(f"{task}-launch-{number}", task, count, plan.to_json())

    def launch(
        self, intent: LaunchIntent, provider: MithrilProvider | None = None
    ) -> list[Instance]:
        """Asks until the machines are there, as the supervisor does."""
        used = provider or self.provider

        def ask() -> list[Instance] | None:
            try:
                return used.launch(intent)
            except LaunchPending:
                return None

        return eventually(ask, "the machines are there")

    def waiting(self, intent: LaunchIntent) -> str:
        """What the user is told while there are no machines yet; fails if there are."""
        try:
            found = self.provider.launch(intent)
        except LaunchPending as error:
            return str(error)
        raise AssertionError(f"nobody waits: {found}")

    def told(self, intent: LaunchIntent, words: str) -> str:
        """Asks until that is what the user is told."""

        def ask() -> str | None:
            text = self.waiting(intent)
            return text if words in text else None

        return eventually(ask, f"the user is told {words!r}")

    def alive(self, task: str | None = TASK) -> list[Instance]:
        """What is listed and has not ended."""
        return [each for each in self.provider.list_instances(task) if each.state != "ended"]

    def end(self, task: str = TASK) -> list[Instance]:
        """Ends all of a task, and gives what is listed of it then."""

        def gone() -> list[Instance] | None:
            left = self.alive(task)
            if left:
                self.provider.terminate(left)
            return None if left else self.provider.list_instances(task)

        return eventually(gone, "all is gone")

    def calls(self, action: str) -> int:
        """How often that was asked of the API."""
        return sum(name == action for name, _ in self.cloud.calls)


def eventually(look: Callable[[], Value | None], what: str) -> Value:
    """The value of `look`, as soon as it has one."""
    until = time.monotonic() + SECONDS
    while True:
        found = look()
        if found is not None:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.03)
