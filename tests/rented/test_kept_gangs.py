"""Gangs that one task keeps and another takes over: the steps that all clouds share, with a cloud in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from flowlite.errors import ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.state import clock
from provider_adapters.rented.kept_gangs import KeptGangs, as_held, is_kept
from provider_adapters.rented.ledger import Launch, Ledger

NOW = 1_700_000_000.0
FITS = "two big ones"


class Cloud:
    """The machines of launches, by token; as `GangMachines` and as `GangCloud`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.machines: dict[str, list[Instance]] = {}
        self.said: list[str] = []
        self.suitable = True
        self.fails: set[str] = set()

    def _do(self, what: str, token: str) -> None:
        if what in self.fails:
            raise ProviderError(f"{what} fails")
        self.said.append(f"{what} {token}")

    def token_of(self, instance: Instance) -> str:
        return str(instance.data.get("token", ""))

    def names_of(self, launch: Launch) -> set[str]:
        return set(launch.ids)

    def keep(self, launch: Launch, instances: Sequence[Instance], seconds: float) -> None:
        self._do("keep", launch.token)

    def take(self, launch: Launch, instances: Sequence[Instance], intent: LaunchIntent) -> None:
        self._do("take", launch.token)

    def is_suitable(self, launch: Launch) -> bool:
        return self.suitable

    def running(self, launch: Launch) -> Sequence[Instance]:
        if "list" in self.fails:
            raise ProviderError("list fails")
        return self.machines[launch.token]

    def end(self, launch: Launch) -> None:
        self._do("end", launch.token)


class Scene:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.ledger = Ledger(directory)
        self.cloud = Cloud(self.ledger)
        self.gangs = KeptGangs(self.ledger, self.cloud)

    def launch(self, token: str = "one-1", task: str = "one", fits: str = FITS) -> list[Instance]:
        self.ledger.begin(token, task, 2, lambda: {"fits": fits})
        call = self.ledger.intend(token, "here", {})
        # The cloud does not list them in the order of their names.
        names = [f"{token}-b", f"{token}-a"]
        self.ledger.made(token, call.name, names)
        data = {"token": token, "root": "/flow", "home": f"/flow/tasks/{task}"}
        made = [
            Instance(name, task, launched_at=self.now, least_seconds=60.0, data=data, launch=token)
            for name in names
        ]
        self.cloud.machines[token] = made
        return made

    def kept(self, token: str = "one-1", task: str = "one", fits: str = FITS) -> list[Instance]:
        return self.gangs.keep(self.launch(token, task, fits), 600.0)

    def intent(self, task: str = "two", token: str = "two-1", count: int = 2) -> LaunchIntent:
        return LaunchIntent(token, task, count, {})

    def take_over(self, intent: LaunchIntent | None = None, wanted: str = FITS) -> list[Instance]:
        return self.gangs.take_over(intent or self.intent(), wanted, self.cloud, patience=30.0)

    def read(self, token: str = "one-1") -> Launch:
        found = self.ledger.read(token)
        assert found is not None
        return found


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path / "launches", monkeypatch)


def test_a_whole_gang_is_kept_until_shortly_before_its_lease_ends(scene: Scene) -> None:
    found = scene.kept()
    assert [each.state for each in found] == ["warm", "warm"]
    assert scene.cloud.said == ["keep one-1"]
    scene.now += 597.0
    assert is_kept(scene.read())
    scene.now += 1.0
    assert not is_kept(scene.read())


@pytest.mark.parametrize(
    "why", ["a part", "one more", "starting", "another task", "unfit", "ended", "short", "told no"]
)
def test_what_is_no_whole_sound_gang_of_its_task_is_not_kept(scene: Scene, why: str) -> None:
    found = scene.launch(fits="" if why == "unfit" else FITS)
    seconds = 6.9 if why == "short" else 600.0
    if why == "a part":
        found = found[:1]
    elif why == "one more":
        found += scene.launch("one-2")
    elif why == "starting":
        found[1] = replace(found[1], state="starting")
    elif why == "another task":
        found = [replace(each, task_id="two") for each in found]
    elif why == "ended":
        scene.ledger.end("one-1")
    elif why == "told no":
        scene.cloud.fails.add("keep")
    assert scene.gangs.keep(found, seconds) == []
    assert not is_kept(scene.read())
    assert scene.cloud.said == []


def test_the_next_task_has_it_and_nobody_else(scene: Scene) -> None:
    first = scene.kept()
    scene.now += 100.0
    found = scene.take_over()
    assert [each.id for each in found] == ["one-1-a", "one-1-b"]
    for each in found:
        assert (each.task_id, each.state, each.launch, each.hold) == ("two", "running", "two-1", 1)
        # It is charged from now on, and what is left of the least time is its.
        assert (each.launched_at, each.least_seconds) == (scene.now, 0.0)
        assert each.data["home"] == f"/flow/tasks/two-{each.id}"
    assert scene.cloud.said == ["keep one-1", "take one-1"]
    assert scene.take_over(scene.intent("three", "three-1")) == []
    assert scene.gangs.still(first) == []
    assert scene.gangs.to_end(first) == []
    assert scene.gangs.to_end(found) == found
    # The same intent, after a crash, has the same machines at the same time.
    scene.now += 5.0
    assert scene.take_over() == found
    # Another launch of the task has not.
    assert scene.take_over(scene.intent(token="two-2")) == []


def test_the_third_task_is_charged_from_its_own_time(scene: Scene) -> None:
    scene.kept()
    scene.now += 20.0
    second = scene.take_over()
    assert second[0].least_seconds == 40.0
    assert scene.gangs.keep(second, 600.0) != []
    scene.now += 10.0
    third = scene.take_over(scene.intent("three", "three-1"))
    assert [(each.hold, each.launched_at, each.least_seconds) for each in third] == [
        (2, scene.now, 30.0)
    ] * 2


def test_nobody_is_charged_for_a_machine_before_the_cloud_charges_for_it(scene: Scene) -> None:
    scene.kept()
    scene.cloud.machines["one-1"] = [
        replace(each, launched_at=each.launched_at + 50.0) for each in scene.cloud.machines["one-1"]
    ]
    scene.now += 10.0
    assert [each.launched_at for each in scene.take_over()] == [NOW + 50.0] * 2
    # Nor does one get a time that has none yet.
    fresh = replace(scene.cloud.machines["one-1"][0], launched_at=0.0)
    assert as_held(fresh, scene.read()).launched_at == 0.0


@pytest.mark.parametrize(
    ("state", "kept", "shown"),
    [
        ("running", True, "warm"),
        ("running", False, "running"),
        ("warm", False, "running"),
        ("ended", True, "ended"),
        ("ending", False, "ending"),
    ],
)
def test_whether_it_is_warm_is_what_the_ledger_says(
    scene: Scene, state: str, kept: bool, shown: str
) -> None:
    found = scene.launch()
    if kept:
        scene.gangs.keep(found, 600.0)
    listed = replace(found[0], state=state, task_id="as the tag says")
    held = as_held(listed, scene.read())
    assert (held.state, held.task_id) == (shown, "one")
    assert (held.launch, held.launched_at, held.hold) == ("one-1", NOW, 0)


@pytest.mark.parametrize("why", ["other wish", "no wish", "unsuitable", "over", "ended", "count"])
def test_a_gang_that_does_not_fit_is_left_to_others(scene: Scene, why: str) -> None:
    scene.kept()
    wanted = {"other wish": "three small ones", "no wish": ""}.get(why, FITS)
    intent = scene.intent()
    if why == "unsuitable":
        scene.cloud.suitable = False
    elif why == "over":
        scene.now += 599.0
    elif why == "ended":
        scene.ledger.end("one-1")
    elif why == "count":
        intent = scene.intent(count=3)
    scene.cloud.said.clear()
    assert scene.take_over(intent, wanted) == []
    # One that is kept for this wish, and is of another size, has lost a machine: it is of no use to anybody.
    assert scene.cloud.said == (["end one-1"] if why == "count" else [])
    assert scene.read().task == "one"


def test_nothing_without_a_wish_is_taken_over_even_if_it_was_kept_without_one(
    scene: Scene,
) -> None:
    scene.launch(fits="")
    scene.ledger.note("one-1", kept={"until": NOW + 600.0})
    assert scene.take_over(wanted="") == []


@pytest.mark.parametrize("why", ["gone", "another in its place", "silent"])
def test_a_gang_that_is_not_whole_any_more_is_ended_and_another_taken(
    scene: Scene, why: str
) -> None:
    scene.kept()
    machines = scene.cloud.machines["one-1"]
    if why == "gone":
        machines.pop()
    elif why == "another in its place":
        machines[0] = replace(machines[0], id="strange")
    else:
        scene.cloud.fails.add("take")
    scene.cloud.said.clear()
    assert scene.take_over() == []
    assert scene.cloud.said == ["end one-1"]
    assert not is_kept(scene.read())
    scene.cloud.fails.clear()
    scene.now += 1.0
    scene.kept("four-1", "four")
    assert [each.id for each in scene.take_over()] == ["four-1-a", "four-1-b"]


def test_a_gang_that_cannot_be_listed_stays_for_others(scene: Scene) -> None:
    scene.kept()
    scene.cloud.fails.add("list")
    assert scene.take_over() == []
    assert is_kept(scene.read())
    assert scene.cloud.said == ["keep one-1"]


def test_one_that_was_taken_over_is_waited_for_and_then_given_up(scene: Scene) -> None:
    scene.kept()
    scene.take_over()
    scene.cloud.said.clear()
    scene.cloud.fails.add("list")
    scene.now += 29.0
    with pytest.raises(LaunchPending, match="list fails"):
        scene.take_over()
    scene.now += 1.0
    assert scene.take_over() == []
    assert scene.cloud.said == ["end one-1"]
    # Its machines are not of this launch any more, since others are asked for.
    assert scene.gangs.held_by(scene.intent()) is None
    assert scene.read().notes["held"]["token"] == "two-1-lost"


def test_who_ends_a_kept_gang_says_so_before_and_the_next_one_finishes_it(scene: Scene) -> None:
    found = scene.kept()
    assert scene.gangs.still(found) == found
    assert scene.gangs.to_end(found) == found
    assert scene.read().notes["kept"] == {"ending": True}
    scene.cloud.said.clear()
    # The one who wanted to end it was killed. Others do not, if the cloud does not answer.
    scene.cloud.fails.add("end")
    assert scene.take_over() == []
    scene.cloud.fails.clear()
    assert scene.take_over() == []
    assert scene.take_over() == []
    assert scene.cloud.said == ["end one-1"]


def test_what_was_not_kept_is_ended_without_a_note(scene: Scene) -> None:
    found = scene.launch()
    assert scene.gangs.to_end(found) == found
    assert "kept" not in scene.read().notes
    scene.ledger.end("one-1")
    assert scene.gangs.to_end([*found, Instance("x", "one")]) == [*found, Instance("x", "one")]
    assert scene.gangs.still([*found, Instance("x", "one")]) == []


def test_one_that_was_taken_over_stays_even_if_a_new_one_like_it_would_not_be_taken(
    scene: Scene,
) -> None:
    scene.kept()
    found = scene.take_over()
    scene.cloud.suitable = False
    assert scene.take_over() == found


def test_the_shortest_time_for_which_one_is_kept(scene: Scene) -> None:
    assert scene.gangs.keep(scene.launch(), 7.1) != []


def test_a_file_that_cannot_be_read_keeps_no_machine_from_its_end(
    scene: Scene, tmp_path: Path
) -> None:
    found = scene.kept()
    (tmp_path / "launches" / "one-1.json").write_text("{")
    assert scene.gangs.to_end(found) == found
    assert scene.gangs.still(found) == []
    assert scene.gangs.keep(found, 600.0) == []


class TestBetweenALookAndTheLock:
    """What another process does after a launch was read, and before its lock is held."""

    def before_the_lock(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]
    ) -> list[str]:
        """Has this done by another process. Returns what is filled once it was."""
        hold = scene.ledger.hold
        done: list[str] = []

        def held(token: str, patience: float = 90.0) -> AbstractContextManager[None]:
            if not done:
                done.append(token)
                do()
            return hold(token, patience)

        monkeypatch.setattr(scene.ledger, "hold", held)
        return done

    def test_what_another_task_has_taken_over_is_not_ended(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = scene.kept()
        done = self.before_the_lock(scene, monkeypatch, scene.take_over)
        assert scene.gangs.to_end(first) == []
        assert done == ["one-1"]
        assert "ending" not in scene.read().notes["kept"]

    def test_nor_is_it_given_up(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its machines do not answer the one task, and a moment later they do answer the other."""
        scene.kept()
        taken: list[Instance] = []

        def meanwhile() -> None:
            scene.cloud.fails.clear()
            taken.extend(scene.take_over(scene.intent("three", "three-1")))

        def refuse(*_: object) -> None:
            self.before_the_lock(scene, monkeypatch, meanwhile)
            scene.cloud.take = answer  # type: ignore[method-assign]
            raise ProviderError("it does not answer")

        answer, scene.cloud.take = scene.cloud.take, refuse  # type: ignore[method-assign]
        assert scene.take_over() == []
        assert len(taken) == 2
        assert scene.cloud.said == ["keep one-1", "take one-1"]

    def test_what_has_ended_is_not_kept(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = scene.launch()
        self.before_the_lock(scene, monkeypatch, lambda: scene.ledger.end("one-1"))
        assert scene.gangs.keep(found, 600.0) == []
        assert scene.cloud.said == []

    def test_what_has_ended_is_not_taken_over(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.kept()
        scene.cloud.said.clear()
        self.before_the_lock(scene, monkeypatch, lambda: scene.ledger.end("one-1"))
        assert scene.take_over() == []
        assert "take one-1" not in scene.cloud.said
