"""The records of hosts that tasks of one FLOW_HOME have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.ssh import ending, leases
from provider_adapters.ssh.ending import Ending
from provider_adapters.ssh.records import ASKED, LEFT, TAKEN, WARM, Entries, Records
from provider_adapters.ssh.unfit_hosts import UnfitHosts
from provider_adapters.ssh.warm_hosts import WarmHosts

COUNTS = (3, 30)


def record(directory: Path, task: str, states: dict[str, str]) -> None:
    hosts = {key: {"state": state} for key, state in states.items()}
    (directory / "tasks").mkdir(exist_ok=True)
    (directory / "tasks" / f"{task}.json").write_text(json.dumps({"hosts": hosts}))


def test_hosts_of_others_are_those_that_they_have_or_ask_for(tmp_path: Path) -> None:
    record(tmp_path, "mine", {"a": TAKEN})
    record(tmp_path, "other", {"b": TAKEN, "c": ASKED, "d": LEFT, "e": WARM})
    assert Records(tmp_path).held_beside("mine") == {"b", "c"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hosts": {"b": {}}}', '{"hosts": {"b": 7}}'])
def test_a_damaged_record_of_another_task_stops_no_launch(tmp_path: Path, content: str) -> None:
    record(tmp_path, "other", {"c": TAKEN})
    (tmp_path / "tasks" / "damaged.json").write_text(content)
    kept = Records(tmp_path)
    assert kept.held_beside("mine") == {"c"}
    assert WarmHosts(kept).hosts() == set()


@pytest.mark.parametrize("content", ["", '{"hosts": {"b": {}}}'])
def test_nor_does_it_keep_others_from_being_tidied_and_kept(tmp_path: Path, content: str) -> None:
    given_up = {"state": LEFT, "left_at": 1.0}
    left = {"state": LEFT, "left_at": clock.now(), "instance": {}}
    over = {"state": WARM, "until": 1.0}
    (tmp_path / "tasks").mkdir()
    for task, entry in {"old": given_up, "left": left, "warm": over}.items():
        (tmp_path / "tasks" / f"{task}.json").write_text(json.dumps({"hosts": {"a": entry}}))
    (tmp_path / "tasks" / "damaged.json").write_text(content)
    kept = Records(tmp_path)
    assert kept.left() == [left]
    kept.prune()
    assert WarmHosts(kept).keep([], 60.0) == []
    assert kept.tasks() == ["damaged", "left"]


class Counted(Records):
    """Records that count how often a file is read, and how often one is changed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads = self.changes = 0

    def read(self, task_id: str) -> Entries:
        self.reads += 1
        return super().read(task_id)

    @contextmanager
    def change(self, task_id: str) -> Iterator[Entries]:
        self.changes += 1
        with super().change(task_id) as entries:
            yield entries


def _leased(directory: Path, count: int, state: str) -> list[Instance]:
    """Hosts of the task `t1`, and their instances; output of the first is retained."""
    instances = [
        Instance(f"i{number}", "t1", data={"key": f"h{number}", "target": {"host": f"h{number}"}})
        for number in range(count)
    ]
    entries = {
        str(each.data["key"]): {"state": state, "until": 1e12, "instance": each.to_json()}
        for each in instances
    }
    entries["h0"]["retained"] = True
    (directory / "tasks").mkdir(exist_ok=True)
    (directory / "tasks" / "t1.json").write_text(json.dumps({"hosts": entries}))
    return instances


def _end(directory: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counted, list[str]]:
    retained: list[str] = []

    def release(_: Any, data: Any, task: str, client: str, *, retain: bool) -> dict[str, Any]:
        if retain:
            retained.append(str(data["key"]))
        return {"ok": True}

    monkeypatch.setattr(ending, "_say_true", lambda target: None)
    monkeypatch.setattr(leases, "release", release)
    instances = _leased(directory, count, TAKEN)
    kept = Counted(directory)
    kept.client = "me"
    Ending(kept, UnfitHosts(directory)).end(instances)
    return kept, retained


def test_ending_reads_the_record_as_often_for_many_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has an entry for each host. To read it for each host takes the square of their number."""
    found = []
    for count in COUNTS:
        directory = tmp_path / str(count)
        directory.mkdir()
        kept, retained = _end(directory, count, monkeypatch)
        assert retained == ["h0"]
        assert kept.tasks() == []
        found.append((kept.reads, kept.changes))
    assert found[0] == found[1]


def test_only_hosts_that_have_not_just_answered_are_asked_whether_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends a task has listed its instances a moment ago."""
    asked: list[str] = []
    released: list[str] = []

    def release(_: Any, data: Any, *__: object, retain: bool) -> dict[str, Any]:
        released.append(str(data["key"]))
        return {"ok": True}

    monkeypatch.setattr(ending, "_say_true", lambda target: asked.append(str(target)))
    monkeypatch.setattr(leases, "release", release)
    instances = _leased(tmp_path, 4, TAKEN)
    kept = Counted(tmp_path)
    kept.client = "me"
    there = Ending(kept, UnfitHosts(tmp_path))
    for each in instances[:3]:
        there.has_answered(str(each.data["key"]))
    there.end(instances)
    assert len(asked) == 1
    assert sorted(released) == sorted(str(each.data["key"]) for each in instances)
    monkeypatch.setattr(ending, "_JUST_NOW", 0.0)
    there.end(instances)
    assert len(asked) == 5


def test_files_are_forgotten_of_a_host_that_has_lost_our_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was not used for long, or its disk is new."""

    def release(*_: Any) -> dict[str, Any]:
        raise leases.NotThere("python3: No such file or directory")

    monkeypatch.setattr(leases, "release", release)
    kept = Records(tmp_path)
    kept.client = "me"
    Ending(kept, UnfitHosts(tmp_path)).forget(_leased(tmp_path, 1, TAKEN))


def test_warm_hosts_are_read_and_taken_over_at_once(tmp_path: Path) -> None:
    found = []
    for count in COUNTS:
        directory = tmp_path / str(count)
        directory.mkdir()
        warm = _leased(directory, count, WARM)
        kept = Counted(directory)
        keeping = WarmHosts(kept)
        assert keeping.still(warm) == warm
        told = [{"task": "t1", "instance": each.id} for each in warm]
        hosts = [type("Host", (), {"key": each.data["key"]})() for each in warm]
        noted = [keeping.noted(host, said) for host, said in zip(hosts, told, strict=True)]
        assert noted == told
        assert keeping.noted(hosts[0], {"task": "t1", "instance": "another"}) == {}
        again = [
            Instance(f"j{number}", "t2", data={**each.data, "warm": was})
            for number, (each, was) in enumerate(zip(warm, told, strict=True))
        ]
        keeping.taken_over(again[1:])
        assert list(kept.read("t1")) == ["h0"]
        assert keeping.still(warm) == warm[:1]
        found.append((kept.reads, kept.changes))
    assert found[0] == found[1]


def test_a_record_is_encoded_once_for_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a large gang is long."""
    kept = Records(tmp_path)
    encoded: list[object] = []
    encode = json.dumps

    def noting(value: object) -> str:
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(json, "dumps", noting)
    with kept.change("t1") as entries:
        entries["a"] = {"state": TAKEN}
    with kept.change("t1") as entries:
        assert entries.pop("b", None) is None
    assert encoded == [{"hosts": {"a": {"state": TAKEN}}}] * 2
    path = tmp_path / "tasks" / "t1.json"
    before = path.stat().st_ino
    with kept.change("t1"):
        pass
    assert path.stat().st_ino == before
    with kept.change("t1") as entries:
        entries.clear()
    assert not path.exists()
    assert len(encoded) == 3


def test_only_records_that_name_a_state_are_parsed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch asks which hosts were given up, while the records of all tasks name hundreds that are in use."""
    left = {"state": LEFT, "left_at": clock.now(), "instance": {}}
    record(tmp_path, "taken", {"a": TAKEN, "b": ASKED})
    record(tmp_path, "warm", {"c": WARM})
    (tmp_path / "tasks" / "left.json").write_text(json.dumps({"hosts": {"d": left}}))
    parsed: list[bytes] = []
    parse = json.loads

    def noting(content: bytes) -> Any:
        parsed.append(content)
        return parse(content)

    monkeypatch.setattr(json, "loads", noting)
    assert Records(tmp_path).left() == [left]
    assert parsed == [(tmp_path / "tasks" / "left.json").read_bytes()]
