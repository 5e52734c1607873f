"""Settings, credentials, volumes and checks: all that is an account's and not a task's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import (
    ConfigError,
    NotFound,
    PermissionRefused,
    ProviderError,
)
from flowlite.settings.settings import load_settings
from flowlite.spec import TaskConfig
from provider_adapters.mithril import MithrilProvider
from provider_adapters.mithril.account import choose_project
from provider_adapters.mithril.rest import credentials
from provider_adapters.mithril.settings import MithrilSettings, read_settings
from provider_adapters.mithril.volumes import Volumes
from tests.providers.mithril_on_paper import Paper

pytest.importorskip("httpx")


# Settings and credentials


def settings(tmp_path: Path, text: str, variables: dict[str, str] | None = None) -> MithrilSettings:
    (tmp_path / "flow.toml").write_text(f"[mithril]\n{text}\n")
    environment = {
        "FLOW_HOME": str(tmp_path / "home"),
        "FLOW_TRUSTED_DIRS": str(tmp_path),
        **(variables or {}),
    }
    found = load_settings(directory=tmp_path, environment=environment)
    return read_settings(MithrilProvider.freeze(found, environment))


def test_settings_and_what_the_environment_says_over_them(tmp_path: Path) -> None:
    text = 'project = "team"\nregion = "r"\nlease = "5m"\nboot_timeout = 60\nnode_key = false\nuser = "ubuntu"'
    found = settings(
        tmp_path, text, {"MITHRIL_PROJECT": "other", "MITHRIL_API_URL": "http://127.0.0.1:8/"}
    )
    assert found == MithrilSettings(
        project="other", region="r", api_url="http://127.0.0.1:8", node_key=False, user="ubuntu",
        lease=300.0, boot_timeout=60.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('projekt = "x"', "did you mean 'project'"),
        ('api_url = "http://api.example"', "https"),
        ('api_url = "https://key@api.example"', "without a key"),
        ('api_url = "ftp://x"', "address of the API"),
        ('lease = "1m"', "at least 120 s"),
        ("node_key = 1", "true or false"),
        ('user = "-x"', "name of a user"),
        ("boot_timeout = 0", "above 0"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"flow\.toml: \[mithril\]") as caught:
        settings(tmp_path, text)
    assert words in str(caught.value)


def test_the_key_is_found_in_the_environment_before_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = credentials.usual_file(tmp_path)
    usual.parent.mkdir()
    usual.write_text("fkey_usual\n")
    usual.chmod(0o600)
    named = tmp_path / "named"
    named.write_text("fkey_named")
    named.chmod(0o600)
    monkeypatch.delenv("MITHRIL_API_KEY", raising=False)
    found = credentials.find_key("", tmp_path)
    assert found is not None
    assert (found.value, found.origin) == ("fkey_usual", str(usual))
    found = credentials.find_key(str(named), tmp_path)
    assert found is not None
    assert found.value == "fkey_named"
    monkeypatch.setenv("MITHRIL_API_KEY", "fkey_variable")
    # Which of them it is, is decided at submission; later, a variable of somebody else's shell says nothing.
    found = credentials.find_key(str(named), tmp_path)
    assert found is not None
    assert found.value == "fkey_named"
    text = f"api_key_file = {str(named)!r}"
    at_submission = settings(tmp_path, text, {"MITHRIL_API_KEY": "fkey_variable"})
    found = credentials.find_key(at_submission.api_key_file, tmp_path)
    assert found is not None
    assert (found.value, found.origin) == ("fkey_variable", "MITHRIL_API_KEY")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.delenv("MITHRIL_API_KEY", raising=False)
    file = tmp_path / "key"
    file.write_text("fkey_x")
    file.chmod(mode)
    with pytest.raises(PermissionRefused, match="chmod 600") as caught:
        credentials.find_key(str(file), tmp_path)
    assert "fkey_x" not in str(caught.value)
    with pytest.raises(PermissionRefused):
        credentials.is_wanted(str(file), tmp_path)


# Against the API


def test_a_plan_makes_nothing(paper: Paper) -> None:
    first = paper.intend(volumes={"/d": {"name": "data", "size_gb": 10}}).plan
    assert paper.intend(volumes={"/d": {"name": "data", "size_gb": 10}}).plan == first
    assert {action.split("_")[0] for action, _ in paper.cloud.calls} == {"get"}


def test_offers_are_fast_the_second_time(paper: Paper) -> None:
    assert paper.provider.offers("h100:8", 2)
    before = len(paper.cloud.calls)
    assert paper.make().offers("h100:8", 4)
    assert len(paper.cloud.calls) == before


def test_volumes_are_made_listed_used_and_deleted(paper: Paper) -> None:
    made = paper.provider.create_volume("data", 100, "file")
    assert (made.region, made.size_gb, made.price_per_month, made.used_by) == (
        "us-central1-a",
        100.0,
        8.0,
        (),
    )
    assert paper.provider.create_volume("data", 100, "file") == made
    paper.launch(paper.intend(volumes={"/d": "data", "/new": {"name": "new", "size_gb": 5}}))
    listed = {info.name: info for info in paper.provider.list_volumes()}
    assert listed["data"].used_by == listed["new"].used_by == ("task tabcdefghij",)
    with pytest.raises(ProviderError, match=r"in use by task tabcdefghij.*not deleted"):
        paper.provider.delete_volume("data")
    paper.end()
    for name in listed:
        paper.provider.delete_volume(name)
    assert paper.provider.list_volumes() == []
    with pytest.raises(NotFound):
        paper.provider.delete_volume("data")


def test_a_volume_is_made_in_the_region_that_was_asked_for(paper: Paper) -> None:
    made = paper.provider.create_volume("data", 100, "file", "us-central2-a")
    assert made.region == "us-central2-a"
    assert paper.provider.create_volume("data", 100, "file", "us-central2-a") == made
    assert paper.provider.create_volume("data", 100, "file") == made
    with pytest.raises(ConfigError, match="exists, in us-central2-a and not in us-central1-a"):
        paper.provider.create_volume("data", 100, "file", "us-central1-a")
    with pytest.raises(ProviderError, match="cannot be made in mars-1"):
        paper.provider.create_volume("more", 100, "file", "mars-1")


def test_a_disk_whose_bid_has_ended_is_free_though_the_listing_still_names_it(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = {"/d": {"name": "disk", "interface": "block", "size_gb": 1}}
    paper.cloud.rules(boot_seconds=600)
    paper.waiting(paper.intend(1, volumes=disk))
    with pytest.raises(ConfigError, match=r"in use \(task tabcdefghij\)"):
        paper.intend(1, volumes=disk)
    listed = paper.provider._place.volumes.listed()
    paper.end()
    monkeypatch.setattr(Volumes, "listed", lambda _: listed)
    paper.intend(1, volumes=disk)
    paper.provider.delete_volume("disk")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_volume_whose_answer_got_lost_is_made_once(paper: Paper, when: str) -> None:
    # Nothing says that names of volumes are refused if they are taken.
    paper.cloud.rules(unique_names=False)
    paper.configure(listing_lag=2.0)
    intent = paper.intend(volumes={"/new": {"name": "new", "size_gb": 5}})
    paper.cloud.fault("create_volume", status=502, when=when)
    paper.cloud.lag(1.0)
    assert len(paper.launch(intent)) == 2
    assert [each["name"] for each in paper.cloud.volumes()] == ["new"]


def test_a_volume_that_is_not_listed_yet_is_not_made_again(paper: Paper) -> None:
    paper.cloud.rules(unique_names=False)
    paper.cloud.lag(600.0)
    made = [paper.make().create_volume("new", 5, "file").location for _ in range(2)]
    assert [each["fid"] for each in paper.cloud.volumes()] == made[:1]
    assert made[0] == made[1]
    paper.cloud.lag(0.0)
    paper.provider.delete_volume("new")
    assert paper.provider.create_volume("new", 5, "file").location != made[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("9lives", 10, "file"), "a letter first"),
        (("data", None, "file"), "how large"),
    ],
)
def test_volumes_that_cannot_be_made(paper: Paper, arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        paper.provider.create_volume(*arguments)


def test_everything_is_found_in_order(paper: Paper) -> None:
    found = {each.what: each for each in paper.provider.check()}
    assert all(each.ok for each in found.values()), found
    assert "from MITHRIL_API_KEY" in found["API key"].detail
    assert "none used" in found["quota"].detail
    paper.cloud.quota("*", 0)
    assert not {each.what: each.ok for each in paper.make().check()}["quota"]


def test_a_missing_or_wrong_key_is_what_is_found(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MITHRIL_API_KEY", "fkey_wrong")
    *good, last = paper.make().check()
    assert [each.ok for each in good] == [True, True]
    assert (last.what, last.ok) == ("API", False)
    assert "fkey_wrong" not in last.detail
    monkeypatch.delenv("MITHRIL_API_KEY")
    last = paper.make().check()[-1]
    assert (last.what, last.ok) == ("API key", False)
    assert "MITHRIL_API_KEY" in last.detail


def test_a_project_is_named_by_its_name(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("nosuch", "proj_nonexistent"):
        monkeypatch.setenv("MITHRIL_PROJECT", wrong)
        with pytest.raises(ConfigError, match=f"no project '{wrong}'; there is "):
            paper.make().plan(TaskConfig(provider="mithril", command=["true"]))
        last = paper.make().check()[-1]
        assert (last.what, last.ok) == ("project", False)
    monkeypatch.setenv("MITHRIL_PROJECT", paper.cloud.facts()["project_fid"])
    assert paper.make().plan(TaskConfig(provider="mithril", command=["true"]))


@pytest.mark.parametrize("status", [403, 404])
def test_what_is_not_said_of_regions_keeps_no_volume_from_its_task(
    paper: Paper, status: int
) -> None:
    paper.cloud.fault("get_cpu_regions", status=status, times=1000)
    disk = {"/data": {"name": "scratch", "size_gb": 1, "interface": "block"}}
    plan = paper.provider.plan(
        TaskConfig(provider="mithril", command=["true"], gpu="h100:8", volumes=disk)
    )
    assert plan.options["volumes"][0]["name"] == "scratch"


def test_a_name_of_several_projects_is_no_choice() -> None:
    listed = [{"name": "research", "fid": fid} for fid in ("proj_1", "proj_2")]
    with pytest.raises(ConfigError, match=r"2 projects called 'research'.*proj_1 or proj_2"):
        choose_project(listed, "research")
    assert choose_project(listed, "proj_2") == "proj_2"
