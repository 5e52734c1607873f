"""Commands that look at tasks: what they print, their JSON, their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import flowlite.cli
from flowlite.errors import ConfigError, ProviderError, StoreError
from flowlite.provider import Provider, adapter_class
from tests.cli.conftest import Flow
from tests.cli.terminals import on_a_terminal
from tests.tasks_made_by_hand import HandMade

CLI_PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


@pytest.fixture(autouse=True)
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )


# flow status


def test_status_without_tasks_says_what_to_do(flow: Flow) -> None:
    ran = flow("status")
    assert (ran.code, ran.err) == (0, "")
    assert "flow run" in ran.out
    assert flow("status", "--json").json == []


def test_status_lists_tasks_newest_first(flow: Flow) -> None:
    HandMade("old", created_at=time.time() - 100).end("failed", "first failure: node 0, rank 1: no")
    HandMade("new", nodes=4)
    ran = flow("status")
    head, first, second = ran.out.splitlines()
    assert head.split() == [
        "NAME",
        "ID",
        "STATUS",
        "NODES",
        "GPU",
        "CREATED",
        "RUN",
        "TIME",
        "COST",
        "REASON",
    ]
    assert first.split()[0] == "new"
    assert "running" in first
    assert second.split()[0] == "old"
    assert second.endswith("first failure: node 0, rank 1: no")


def test_status_as_json_has_one_stable_shape(flow: Flow) -> None:
    made = HandMade("digits", price=2.0)
    made.instance(0, price=2.0, hours=1, ended=True)
    (task,) = flow("status", "--json").json
    assert task == {
        "id": made.id,
        "name": "digits",
        "status": "running",
        "reason": "",
        "function": "train.main",
        "provider": "local",
        "num_instances": 2,
        "num_instances_min": 2,
        "num_instances_max": 2,
        "processes_per_node": 2,
        "gpu": None,
        "attempt": 1,
        "created_at": task["created_at"],
        "started_at": task["started_at"],
        "finished_at": None,
        "price_per_hour": 2.0,
        "spot": False,
        "price_cap": None,
        "region": None,
        "max_price_per_hour": None,
        "max_cost": None,
        "worst_case_cost": None,
        "may_exceed": "",
        "estimated_cost": pytest.approx(2.0, abs=0.001),
        "upper_bound": False,
        "needs_resume": False,
        "warm_nodes": 0,
        "warm_until": None,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["created_at"])
    page = CLI_PAGE.read_text().partition("| field of a task |")[2]
    listed = [row.split("|")[1] for row in page.partition("\n\n")[0].splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", "".join(listed))) == set(task)


def test_status_hides_old_finished_tasks_and_says_so(flow: Flow) -> None:
    for number in range(23):
        HandMade(f"t{number}", created_at=1000.0 + number).end()
    HandMade("alive", created_at=1.0)
    ran = flow("status")
    assert len(ran.out.splitlines()) == 1 + 20 + 1
    assert "alive" in ran.out
    assert "3 older finished tasks are not shown" in ran.err
    as_json = flow("status", "--json")
    assert (len(as_json.json), as_json.err) == (21, ran.err)
    assert len(flow("status", "--all").out.splitlines()) == 1 + 24


def test_status_of_one_task_tells_its_story(flow: Flow) -> None:
    made = HandMade("digits", price=2.0, config={"max_price_per_hour": 3.0, "max_cost": 9})
    made.instance(1)
    made.change("stopping", "first failure: node 0, rank 0: exited with 3")
    made.end("failed", "first failure: node 0, rank 0: exited with 3")
    out = flow("status", "digits").out
    assert f"digits ({made.id})" in out
    assert "failed: first failure: node 0, rank 0: exited with 3" in out
    assert "2 × this machine, 2 per node" in out
    assert "$3.00 per instance and hour, $9.00 in all" in out
    assert f"{made.id}-1" in out
    # What happened twice in a row under the same words is told once.
    assert out.count("first failure") == 2
    shown = flow("status", "digits", "--json").json
    assert [node["rank"] for node in shown["nodes"]] == [1]
    assert [event["kind"] for event in shown["events"]] == ["running", "stopping", "failed"]


def test_names_from_elsewhere_cannot_steer_the_terminal(flow: Flow) -> None:
    made = HandMade()
    made.end("failed", "first failure: \x1b[2J\x1b]0;title\x07 gone")
    for words in (("status",), ("status", made.id)):
        assert "\x1b" not in flow(*words).out
        assert "\x07" not in flow(*words).out


# flow logs


def test_logs_print_labelled_lines(flow: Flow) -> None:
    made = HandMade()
    made.write(0, b"one\n\x1b[31mred\x1b[0m \x1b[2Jtwo\n", at=1e9)
    made.write(3, b"three\n", at=1e9 + 1)
    made.end()
    ran = flow("logs", made.id)
    assert [line.split("] ", 2)[2] for line in ran.out.splitlines()] == [
        "one",
        "\x1b[31mred\x1b[0m two",
        "three",
    ]
    assert ran.out.splitlines()[2].startswith("[Node 1, rank 3] [")
    assert flow("logs", made.id, "-f").out == ran.out
    assert flow("logs", made.id, "--tail", "1").out.endswith("three\n")
    assert flow("logs", made.id, "--node", "0").out.count("\n") == 2
    assert flow("logs", made.id, "--rank", "3").out.count("\n") == 1
    assert flow("logs", made.id, "--since", "5m").out == ""


def test_logs_as_json_are_one_object_a_line(flow: Flow) -> None:
    made = HandMade()
    made.write(2, "grün\n".encode(), at=1e9, stream="err")
    (line,) = flow("logs", made.id, "--json").out.splitlines()
    assert json.loads(line) == {
        "time": "2001-09-09T01:46:40.000Z",
        "node": 1,
        "rank": 2,
        "stream": "err",
        "text": "grün",
    }


def test_logs_of_a_failed_task_end_with_the_first_failure(flow: Flow) -> None:
    made = HandMade()
    made.write(0, b"so far\n")
    made.end("failed", "first failure: node 0, rank 0: ValueError: no")
    assert flow("logs", made.id).out.splitlines()[-1] == (
        "first failure: node 0, rank 0: ValueError: no"
    )


# flow result


def test_result_prints_what_rank_0_returned(flow: Flow) -> None:
    made = HandMade()
    made.returns(0, {"accuracy": 0.97})
    made.returns(1, "a text\nof two lines")
    made.returns(2, None)
    made.end()
    assert flow("result", made.id).out == "{'accuracy': 0.97}\n"
    assert flow("result", made.id, "--rank", "1").out == "a text\nof two lines\n"
    assert flow("result", made.id, "--rank", "2").out == ""
    data = flow("result", made.id, "--json").json
    assert data["result"] == {"accuracy": 0.97}
    assert data["result_text"] == "{'accuracy': 0.97}"
    assert data["rank"] == 0
    assert data["id"] == made.id


def test_results_that_are_not_json_come_as_text(flow: Flow) -> None:
    made = HandMade()
    made.returns(0, {1, 2})
    made.returns(1, float("nan"))
    made.end()
    data = flow("result", made.id, "--json").json
    assert (data["result"], data["result_text"]) == (None, "{1, 2}")
    assert flow("result", made.id, "--rank", "1", "--json").json["result_text"] == "nan"


def test_result_of_a_failed_task_shows_the_failure_and_its_traceback(flow: Flow) -> None:
    made = HandMade()
    try:
        raise ValueError("no such layer")
    except ValueError as error:
        made.raises(3, error, first=True)
    made.end("failed", "first failure: node 1, rank 3: ValueError: no such layer")
    ran = flow("result", made.id)
    assert (ran.code, ran.out) == (1, "")
    assert "error: ValueError: no such layer" in ran.err
    assert "node 1, rank 3 of task digits" in ran.err
    assert 'raise ValueError("no such layer")' in ran.err
    assert "flowlite/api/task.py" not in ran.err
    failed = flow("result", made.id, "--json")
    assert failed.json["type"] == "ValueError"
    assert failed.json["exit_code"] == 1


class Exit(Exception):
    """The name of the exception by which typer ends a program well."""


@pytest.mark.parametrize(
    "raised",
    [
        BrokenPipeError(32, "Broken pipe"),
        Exit("the loss is NaN"),
        typer.Exit(),
        typer.Abort(),
        typer.BadParameter("no such data set"),
        ConfigError("a worker may not start tasks"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_no_exception_of_a_worker_is_taken_for_an_end_of_the_command(
    flow: Flow, raised: Exception
) -> None:
    made = HandMade()
    made.raises(0, raised, first=True)
    made.end("failed")
    ran = flow("result", made.id)
    assert (ran.code, ran.out) == (1, "")
    assert "error: " in ran.err
    assert "raised on node 0, rank 0" in ran.err
    assert flow("result", made.id, "--json").json["exit_code"] == 1


def test_result_waits_no_longer_than_asked(flow: Flow) -> None:
    made = HandMade()
    ran = flow("result", made.id, "--timeout", "0.05")
    assert ran.code == 1
    assert "is still running" in ran.err


# flow cancel


def test_cancel_asks_for_the_end(flow: Flow) -> None:
    made, other = HandMade("one"), HandMade("two")
    ran = flow("cancel", "one")
    assert ran.code == 0
    assert f"one ({made.id}) is being cancelled" in ran.out
    assert made.store.get_task(made.id).cancel_requested_at is not None
    assert other.store.get_task(other.id).cancel_requested_at is None
    other.end()
    assert "two" in flow("cancel", "two").out
    assert flow("cancel", "two", "--json").json[0]["cancel_requested"] is False


def test_cancel_names_a_namesake_that_goes_on(flow: Flow) -> None:
    """The newest of the name has ended, and the one before it may cost money."""
    earlier = HandMade("one", created_at=time.time() - 60)
    HandMade("other")
    newest = HandMade("one")
    newest.end()
    ran = flow("cancel", "one")
    assert ran.out == f"one ({newest.id}) had ended before: completed\n"
    goes_on = (
        f"an earlier one ({earlier.id}) continues (running); `flow cancel {earlier.id}` ends it"
    )
    assert ran.err == f"warning: {goes_on}\n"
    assert flow("cancel", newest.id).err == ""
    flow("cancel", earlier.id)
    assert flow("cancel", "one").err == ""


def test_a_wrong_name_among_several_cancels_nothing(flow: Flow) -> None:
    made = HandMade("one")
    assert flow("cancel", "one", "nothing").code == 3
    assert made.store.get_task(made.id).cancel_requested_at is None


# flow cost


def test_cost_adds_up(flow: Flow) -> None:
    made = HandMade("paid", price=3.0)
    made.instance(0, price=3.0, hours=2, ended=True)
    made.instance(1, price=3.0, hours=1)
    HandMade("free").end()
    ran = flow("cost")
    assert re.search(r"paid .*running +\$9\.00 +\$3\.00 +-", ran.out)
    assert "in all: $9.00 for 2 tasks, $3.00 per hour now" in ran.out
    assert "free" not in ran.out.splitlines()[1]
    data = flow("cost", "paid", "--json").json
    assert data["tasks"][0]["worst_case_cost"] is None
    assert data["estimated_cost"] == pytest.approx(9.0, abs=0.01)
    assert "free" in flow("cost", "free").out
    assert '"estimated_cost": 0.0' in flow("cost", "free", "--json").out
    assert "in all: $0.00 for 1 task" in flow("cost", "free", "--by", "day").out


def test_what_no_figure_includes_is_named(flow: Flow) -> None:
    left_out = ["traffic out of AWS", "the volume data ($8.00 per month)"]
    HandMade("paid", price=3.0, planned={"not_included": left_out}).instance(0, price=3.0, hours=1)
    for words in (("cost",), ("cost", "paid")):
        assert f"not in it: {'; '.join(sorted(left_out))}" in flow(*words).out
    assert flow("cost", "--json").json["tasks"][0]["not_included"] == left_out
    assert "; ".join(left_out) in flow("status", "paid").out


@pytest.mark.parametrize(("words", "code"), [(["cost"], 0), (["gc"], 5)])
def test_what_kept_machines_have_cost_is_asked_first(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    asked = lambda *_: ["paid: no answer"]  # noqa: E731
    for place in ("warm_nodes", "reconcile"):
        monkeypatch.setattr(f"flowlite.supervise.cleanup.{place}.look_up_cost", asked)
    said = flow(*words)
    assert said.code == code
    assert "paid: no answer" in said.out + said.err


# flow volumes, config, providers, offers, gc


class BareProvider(Provider):
    """Has nothing of what is optional."""

    name = "bare"

    def plan(self, config: Any) -> Any:
        raise NotImplementedError

    def launch(self, intent: Any) -> Any:
        raise NotImplementedError

    def list_instances(self, task_id: str | None = None) -> Any:
        raise NotImplementedError

    def terminate(self, instances: Any) -> None:
        raise NotImplementedError

    def connect(self, instance: Any) -> Any:
        raise NotImplementedError

    def node_settings(self, plan: Any, instance: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    announced = tmp_path / "bare_provider-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bare-provider\nVersion: 1.0\n"
    )
    (announced / "entry_points.txt").write_text(
        f"[flowlite.providers]\nbare = {__name__}:BareProvider\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "bare"


def test_a_provider_that_does_not_exist_is_not_found(flow: Flow) -> None:
    """Its check "FAILED", with the exit code of a provider that lacks a permission."""
    ran = flow("providers", "check", "lcal")
    assert ran.code == 3
    assert "no provider 'lcal'; did you mean 'local'?" in ran.err


def test_a_provider_without_volumes_and_offers_says_so(flow: Flow, bare: str) -> None:
    assert "bare cannot have volumes" in flow("volumes", "list", "--provider", bare).out
    offers = flow("offers", "--provider", bare)
    assert (offers.code, offers.out) == (
        0,
        "bare cannot list what is available; `flow run --dry-run` says what a task would get\n",
    )


def test_how_a_volume_is_made_is_said_of_each_provider(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provider_adapters.aws.provider.AwsProvider.list_volumes", lambda _: [])
    monkeypatch.setattr("provider_adapters.aws.provider.AwsProvider.not_looked_at", lambda _: [])
    made = "no volumes yet; a task that names one makes it"
    assert flow("volumes", "list", "--provider", "local").out == f"{made}\n"
    assert flow("volumes", "list", "--provider", "aws").out == (
        "no volumes yet; a task that names one and gives its size_gb makes it\n"
    )
    monkeypatch.setenv("FLOW_PROVIDER", "local,aws")
    assert flow("volumes", "list").out == f"{made}; at aws it has to give size_gb\n"


def test_volumes_are_made_listed_and_deleted(flow: Flow, flow_home: Path) -> None:
    assert "no volumes yet" in flow("volumes").out
    assert flow("volumes", "create", "ckpt", "--size-gb", "5").code == 0
    (volume,) = flow("volumes", "list", "--json").json
    assert (volume["name"], volume["size_gb"]) == ("ckpt", 5.0)
    assert "5 GB" in flow("volumes", "list").out
    again = flow("volumes", "create", "ckpt", "--size-gb", "9")
    assert (again.code, "ckpt existed already, and keeps its size of 5 GB" in again.err) == (
        0,
        True,
    )
    assert "existed" not in flow("volumes", "create", "ckpt", "--size-gb", "5").err
    unknown = flow("volumes", "delete", "ckpt2")
    assert unknown.code == 3
    assert "there is no volume 'ckpt2'; if `flow volumes list` shows it elsewhere" in unknown.err
    asks = lambda size: flow(  # noqa: E731
        "run", "--dry-run", "--volume", f"/data=ckpt,size_gb={size}", "--", "true"
    )
    assert "note: ckpt existed already, and keeps its size of 5 GB" in asks(9).out
    assert "existed" not in asks(5).out
    refused = flow("volumes", "delete", "ckpt")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert flow("volumes", "delete", "ckpt", "--yes").code == 0
    gone = flow("volumes", "delete", "ckpt", "--yes")
    assert gone.code == 3
    # `flow volumes list` shows those of all providers.
    assert "if `flow volumes list` shows it elsewhere, add its --provider" in gone.err
    assert "elsewhere" not in flow("volumes", "delete", "ckpt", "--yes", "--provider", "local").err
    assert flow("volumes", "create", "Bad Name").code == 2
    nowhere = flow("volumes", "create", "ckpt", "--region", "us-east-1")
    assert (nowhere.code, "the provider local has no regions" in nowhere.err) == (2, True)


def test_one_kind_of_json_has_one_shape(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.toml").write_text("confirm = false\n")
    shapes: dict[str, set[str]] = {}
    for words in (
        "volumes create ckpt",
        "volumes delete ckpt --yes",
        "config trust",
        "config trust --withdraw",
    ):
        document = json.loads(flow(*words.split(), "--json").out)
        keys = set(document["data"])
        assert shapes.setdefault(document["kind"], keys) == keys
    assert shapes.keys() == {"volume", "deleted-volume", "trust"}


def test_settings_are_shown_and_set(flow: Flow, flow_home: Path) -> None:
    assert flow("config", "get", "provider").out == "local\n"
    assert flow("config", "set", "max_cost", "12.5").code == 0
    assert flow("config", "get", "max_cost").out == "12.5\n"
    entry = next(e for e in flow("config", "list", "--json").json if e["name"] == "max_cost")
    assert entry["origin"] == str(flow_home / "config.toml")
    assert "max_cost" in flow("config").out
    assert flow("config", "unset", "max_cost").code == 0
    assert flow("config", "get", "max_cost").out == "-\n"
    assert flow("config", "path").out == f"{flow_home / 'config.toml'}\n"
    wrong = flow("config", "set", "max_kost", "1")
    assert wrong.code == 2
    assert "did you mean 'max_cost'" in wrong.err
    assert flow("config", "set", "max_cost", "much").code == 2


@pytest.mark.parametrize("group", ["config", "hosts", "providers", "volumes"])
def test_a_group_that_lists_by_default_does_so_as_json(flow: Flow, group: str) -> None:
    assert flow(group, "--json").json == flow(group, "list", "--json").json


def test_an_array_that_is_left_is_one_json_document(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\n#SBATCH --array=3-4\ntrue\n")
    left = flow("run", "--detach", "--json", "job.sbatch").json
    assert [task["name"] for task in left] == ["job-3", "job-4"]
    assert left[0].keys() <= flow("status", "--json").json[0].keys()


@pytest.mark.parametrize(
    ("error", "code"), [(ProviderError("no answer from EC2"), 5), (KeyboardInterrupt(), 130)]
)
def test_the_tasks_of_an_array_that_are_submitted_are_shown_if_the_next_one_cannot_be(
    flow: Flow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\n#SBATCH --array=1-3\ntrue\n")
    submit = flowlite.Flow.submit

    def fails_at_third(self: Any, config: Any, **options: Any) -> Any:
        if config.name.endswith("-3"):
            raise error
        return submit(self, config, **options)

    monkeypatch.setattr(flowlite.Flow, "submit", fails_at_third)
    as_json = flow("run", "--detach", "--json", "job.sbatch")
    assert [task["name"] for task in as_json.json] == ["job-1", "job-2"]
    plain = flow("run", "--detach", "job.sbatch")
    assert len(plain.out.split()) == 2
    for ran in (as_json, plain):
        assert ran.code == code
        assert "2 of 3 tasks are submitted and go on; `flow cancel TASK` ends one" in ran.err
        assert str(error) in ran.err


def test_a_wrong_name_among_several_cancels_nothing_and_says_so(flow: Flow) -> None:
    one = HandMade("one")
    ran = flow("cancel", "one", "onne")
    assert (ran.code, ran.err.splitlines()[1:]) == (3, ["  no task was cancelled"])
    assert one.store.get_task(one.id).cancel_requested_at is None
    assert len(flow("cancel", "onne").err.splitlines()) == 1
    assert flow("cancel", "one", "onne", "--json").json["notes"] == ["no task was cancelled"]


def test_what_keeps_one_task_from_being_cancelled_lets_no_other_go_on(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [HandMade(name) for name in ("a", "b", "c")]
    cancel = flowlite.Task.cancel

    def cannot(self: Any) -> bool:
        if self.name != "c":
            raise StoreError(f"{self.name}: database or disk is full")
        return cancel(self)

    monkeypatch.setattr(flowlite.Task, "cancel", cannot)
    ran = flow("cancel", "a", "b", "c")
    assert (ran.code, ran.out.split()[:2]) == (StoreError.exit_code, ["c", f"({made[2].id})"])
    asked = [each.store.get_task(each.id).cancel_requested_at is not None for each in made]
    assert asked == [False, False, True]
    for each in made[:2]:
        assert f"({each.id}) was not cancelled, and keeps running" in ran.err
    as_json = flow("cancel", "a", "c", "--json")
    assert as_json.code == StoreError.exit_code
    assert [each["name"] for each in as_json.json] == ["c"]
    assert flow("cancel", "a", "--json").json["type"] == "StoreError"


def test_providers_are_listed(flow: Flow) -> None:
    (local,) = [row for row in flow("providers", "--json").json if row["name"] == "local"]
    assert (local["default"], local["usable"]) == (True, True)
    shown = [line.split() for line in flow("providers").out.splitlines()]
    assert [words[:2] for words in shown if words[0] == "local"] == [["local", "yes"]]
    assert flow("providers", "list", "--json").json == flow("providers", "--json").json


def test_a_defect_of_one_adapter_hides_nothing_of_the_others(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise KeyError("region")

    for method in ("configured", "offers", "list_volumes", "check"):
        monkeypatch.setattr(adapter_class("slurm"), method, defect)
    flow("volumes", "create", "ckpt")
    told = "slurm: its adapter failed: KeyError: 'region' ("
    for words, shown in (("offers", "this machine"), ("volumes", "ckpt")):
        ran = flow(*words.split())
        assert (ran.code, shown in ran.out) == (0, True)
        assert told in ran.err
    ran = flow("providers", "check")
    assert ran.code == 5
    assert "its adapter failed: KeyError: 'region' (" in ran.out
    # Of the only one that is asked for, the whole error is wanted.
    assert "KeyError" in flow("offers", "--provider", "slurm").err


def test_offers_show_prices(flow: Flow) -> None:
    (offer,) = flow("offers", "--json").json
    assert offer["provider"] == "local"
    assert "this machine" in flow("offers", "-N", "3").out
    assert flow("offers", "--gpu", "h1000").code == 2


def test_gc_forgets_old_tasks_only_when_asked(flow: Flow, flow_home: Path) -> None:
    old = HandMade("old")
    old.change("completed", finished_at=time.time() - 10 * 86400)
    HandMade("new").end()
    HandMade("alive", created_at=1.0)
    assert flow("gc", "--json").json["forgotten"] == []
    assert old.id in flow("gc", "--older-than", "7d", "--dry-run").out
    assert old.paths.directory.exists()
    assert flow("gc", "--older-than", "7d", "--json").json["forgotten"] == [old.id]
    assert not old.paths.directory.exists()
    assert {task["name"] for task in flow("status", "--json").json} == {"new", "alive"}
    assert flow("gc", "--older-than", "soon").code == 2


# Errors and help


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "nothing"], 3, "no task 'nothing'"),
        (["logs", "nothing"], 3, "no task 'nothing'"),
        (["cancel", "nothing"], 3, "no task 'nothing'"),
        (["result", "nothing"], 3, "no task 'nothing'"),
        (["ssh", "nothing"], 3, "no task 'nothing'"),
        (["cost", "nothing"], 3, "no task 'nothing'"),
        (["statsu"], 2, "Did you mean 'status'"),
        (["status", "--bad"], 2, "--bad"),
        (["logs", "x", "--tail", "many"], 2, "--tail"),
        (["volumes", "lst"], 2, "lst"),
        ([], 2, "Commands"),
    ],
)
def test_mistakes_end_with_their_exit_code_and_one_line(
    flow: Flow, words: list[str], code: int, said: str
) -> None:
    ran = flow(*words)
    assert ran.code == code
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_errors_are_json_too(flow: Flow) -> None:
    ran = flow("status", "nothing", "--json")
    assert ran.json == {
        "type": "NotFound",
        "message": "no task 'nothing'; `flow status` lists the tasks",
        "exit_code": 3,
        "notes": [],
    }
    assert ran.err.startswith("error: no task 'nothing'")


def test_debugging_shows_the_traceback(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_DEBUG", "1")
    assert "Traceback" in flow("status", "nothing").err


def test_a_defect_of_ours_says_so(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("flowlite.state.store.Store.list_tasks", broken)
    ran = flow("status")
    assert ran.code == 1
    assert "RuntimeError: oops" in ran.err
    assert "FLOW_DEBUG=1" in ran.err
    assert "Traceback" not in ran.err


def test_a_home_that_cannot_be_used_is_one_line(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "file"))
    for words in (["status"], ["run", "--", "true"]):
        ran = flow(*words)
        assert ran.code == 2
        assert ran.err.splitlines()[-1].startswith("error: FLOW_HOME")


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["volumes", "-h"], ["logs", "-h"]]
)
def test_help_is_there(flow: Flow, words: list[str]) -> None:
    ran = flow(*words)
    assert (ran.code, ran.err) == (0, "")
    assert "Usage: flow" in ran.out


def test_usage_lines_are_marked_once() -> None:
    """Typer itself marks what is optional, but not what is repeated: [TASK...], and not [[TASK]...]..."""
    found, commands = [], [("flow", get_command(flowlite.cli._application(None)))]
    while commands:
        words, command = commands.pop()
        usage = command.get_usage(command.make_context(words, [], resilient_parsing=True))
        if re.search(r"\[\[|\.\.\.[\]}]+\.\.\.", usage):
            found.append(usage)
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        for each in arguments:
            shown = each.metavar or ""
            if (each.nargs == -1) != shown.endswith("...") or shown == shown.lower():
                found.append(f"{words}: {each.name}")
        inner: dict[str, Any] = getattr(command, "commands", {})
        commands += [(f"{words} {name}", each) for name, each in inner.items()]
    assert found == []


def test_help_is_wrapped_to_the_terminal(flow_home: Path) -> None:
    """It is not broken where its source is, but for the examples."""

    def shown_on(columns: int, *words: str) -> list[str]:
        said = on_a_terminal(*words, columns=columns)
        return [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).splitlines()]

    shown = shown_on(90, "cp", "--help")
    at = next(i for i, line in enumerate(shown) if line.endswith("workers. Nothing here"))
    assert shown[at + 1].endswith("is overwritten; run again, an interrupted copy resumes.")
    shown = shown_on(80, "run", "--help")
    examples = [i for i, line in enumerate(shown) if line.startswith("flow run ")]
    assert len(examples) == 4
    assert examples == [*range(examples[0], examples[0] + 4)]


def test_every_command_is_in_the_help(flow: Flow) -> None:
    from flowlite.cli import COMMANDS

    out = flow("--help").out
    for command in COMMANDS:
        assert f"  {command} " in out


def test_the_help_has_the_order_of_the_table(flow: Flow) -> None:
    from flowlite.cli import COMMANDS

    rows = flow("--help").out.partition("Commands:\n")[2].splitlines()
    assert [row.split()[0] for row in rows if row.startswith("  ")] == [*COMMANDS]


def test_version(flow: Flow) -> None:
    assert flow("--version").out.startswith("flowlite ")


# Completion


def complete(flow: Flow, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv("_FLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "flow " + " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    import contextlib
    import io

    said = io.StringIO()
    from flowlite.cli import main

    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        main([])
    return said.getvalue().split()


def test_task_names_and_ids_complete(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    made = HandMade("digits")
    HandMade("dogs")
    assert complete(flow, monkeypatch, "status", "di") == ["digits"]
    assert complete(flow, monkeypatch, "logs", made.id[:6]) == [made.id]
    assert set(complete(flow, monkeypatch, "cancel", "d")) == {"digits", "dogs"}


def test_commands_options_and_settings_complete(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(flow, monkeypatch, "stat") == ["status"]
    assert "--provider" in complete(flow, monkeypatch, "run", "--pro")
    assert complete(flow, monkeypatch, "config", "get", "max_c") == ["max_cost"]


def test_completion_makes_no_home(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "new"))
    assert complete(flow, monkeypatch, "status", "d") == []
    assert not os.path.exists(tmp_path / "new")


@pytest.mark.parametrize("module", ["flowlite", "flowlite.cli"])
def test_the_command_runs_as_a_module(module: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", module, "status"],
        env={**os.environ, "FLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    assert "no tasks" in ran.stdout


def test_the_command_is_announced() -> None:
    import tomllib

    project = Path(flowlite.__file__).parent.parent / "pyproject.toml"
    if project.exists():
        scripts = tomllib.loads(project.read_text())["project"]["scripts"]
        assert scripts == {"flow": "flowlite.cli:program"}
