"""Settings: where each one comes from, wrong ones named with their place, and the home directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowlite.errors import ConfigError
from flowlite.settings import settings as config
from flowlite.settings.settings import (
    Settings,
    ensure_home,
    home,
    load_settings,
    set_value,
    unset_value,
)
from flowlite.testing.hosts.root import USER_ID
from provider_adapters.ssh import editing


@pytest.fixture
def project(tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def origin(settings: Settings, name: str) -> tuple[object, str]:
    return settings[name], settings.entries[name].origin


def test_order_of_the_layers(
    project: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert origin(load_settings(), "provider") == ("local", "default")
    (flow_home / "config.toml").write_text("provider = 'one'\nregion = 'here'\n")
    assert origin(load_settings(), "provider") == ("one", str(flow_home / "config.toml"))
    (project / "flow.toml").write_text("provider = 'two'\n")
    assert origin(load_settings(), "provider") == ("two", "flow.toml")
    monkeypatch.setenv("FLOW_PROVIDER", "three")
    assert origin(load_settings(), "provider") == ("three", "FLOW_PROVIDER")
    assert origin(load_settings({"provider": "four"}), "provider") == ("four", "keyword")
    assert load_settings({"provider": None}).provider == "three"
    assert load_settings()["region"] == "here"


def test_typed_values_from_files_and_variables(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "flow.toml").write_text("max_cost = 3\nlocal_tasks = 5\n")
    monkeypatch.setenv("FLOW_MAX_PRICE_PER_HOUR", "2.5")
    monkeypatch.setenv("FLOW_SHOW_LOGS", "never")
    settings = load_settings()
    assert settings["max_cost"] == 3.0
    assert settings.local_tasks == 5
    assert settings["max_price_per_hour"] == 2.5
    assert settings["show_logs"] == "never"
    # The fixtures of the tests set `sync`.
    assert settings.task_options() == {"max_cost": 3.0, "max_price_per_hour": 2.5, "sync": False}


def test_an_empty_variable_is_no_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_PROVIDER", "")
    assert load_settings().provider == "local"


def test_every_setting_is_listed(project: Path) -> None:
    listed = list(load_settings())
    assert [entry.name for entry in listed] == list(config.SETTINGS)
    assert all(entry.help for entry in listed)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("provder = 'x'\n", "no setting 'provder'; did you mean 'provider'?"),
        ("zzz = 1\n", "no setting 'zzz'; known: provider, region"),
        ("provider = 3\n", "provider: 3 is not allowed; give a word"),
        ("max_cost = -1\n", "max_cost: -1 is not allowed; give a finite number above 0"),
        ("max_cost = true\n", "max_cost: True is not allowed; give a number above 0"),
        ("max_cost = inf\n", "max_cost: inf is not allowed; give a finite number above 0"),
        ("priority = 'hihg'\n", "give one of low, med, high; did you mean 'high'?"),
        ("spot = 2\n", "spot: 2 is not allowed; give true or false"),
        ("local_tasks = 0\n", "local_tasks: 0 is not allowed; give a whole number of at least 1"),
        ("provider = \n", "not TOML"),
        ("providers = 3\n", "under [providers.NAME]"),
        ("[providers]\nssh = 3\n", "under [providers.NAME]"),
        (
            "[ssh]\nuser = 'a'\n[providers.ssh]\nuser = 'b'\n",
            "user is given under [ssh] and under [providers.ssh]",
        ),
        (
            "[ssh.pools.lab]\nhosts = ['a']\n[providers.ssh.pools.lab]\nhosts = ['a']\n",
            "pools.lab.hosts is given under [ssh] and under [providers.ssh]",
        ),
    ],
)
def test_wrong_files_are_named(project: Path, flow_home: Path, text: str, what: str) -> None:
    for path in (flow_home / "config.toml", Path("flow.toml")):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_settings()
        assert str(caught.value).startswith(f"{path}: ")
        assert what in str(caught.value)
        path.unlink()


def test_both_tables_of_a_provider_count_for_different_options(
    project: Path, flow_home: Path
) -> None:
    (flow_home / "config.toml").write_text("[ssh]\nuser = 'a'\n[providers.ssh]\nport = 23\n")
    assert load_settings().provider_options("ssh") == {"user": "a", "port": 23}


@pytest.mark.parametrize("value", ["abc", "nan", "0", "-1", "1e999"])
def test_wrong_variables_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("FLOW_MAX_COST", value)
    with pytest.raises(ConfigError, match=f"^FLOW_MAX_COST: max_cost: '{value}' is not allowed"):
        load_settings()


def test_wrong_keywords_are_named(project: Path) -> None:
    with pytest.raises(ConfigError, match="keyword: no setting 'provder'"):
        load_settings({"provder": "x"})
    with pytest.raises(ConfigError, match="did you mean 'provider'"):
        load_settings()["provder"]


def test_options_of_providers_are_merged(project: Path, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.ssh]\nuser = 'me'\nhosts = ['a']\n")
    (project / "flow.toml").write_text("[providers.ssh]\nhosts = ['b']\n")
    settings = load_settings()
    assert settings.provider_options("ssh") == {"user": "me", "hosts": ["b"]}
    assert settings.provider_options("aws") == {}


def test_a_byte_order_mark_is_no_mistake(project: Path, flow_home: Path) -> None:
    """Editors of Windows write one. The file was "not TOML: Invalid statement (at line 1, column 1)"."""
    Path("flow.toml").write_text("max_cost = 3\n", "utf-8-sig")
    (flow_home / "config.toml").write_text("provider = 'ssh'\n", "utf-8-sig")
    settings = load_settings()
    assert (settings.provider, settings["max_cost"]) == ("ssh", 3)
    set_value("provider", "slurm")
    set_value("region", "x")
    assert (flow_home / "config.toml").read_text() == 'provider = "slurm"\nregion = "x"\n'
    path = flow_home / "config.toml"
    path.write_text(path.read_text(), "utf-8-sig")
    editing.change_hosts(path, "default", lambda hosts: [*hosts, "gpu1"])
    assert load_settings().provider_options("ssh")["pools"] == {"default": {"hosts": ["gpu1"]}}


def test_set_and_unset_keep_the_rest_of_the_file(project: Path, flow_home: Path) -> None:
    path = flow_home / "config.toml"
    path.write_text(
        "# mine\nprovider = 'a'  # old\nregion = \"x\"\n\n[providers.ssh]\nprovider = 'z'\n"
    )
    assert set_value("provider", "slurm").value == "slurm"
    set_value("max_cost", "12.5")
    assert path.read_text() == (
        '# mine\nprovider = "slurm"\nregion = "x"\n\nmax_cost = 12.5\n[providers.ssh]\nprovider = \'z\'\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600
    unset_value("provider")
    assert load_settings().provider == "local"
    assert load_settings().provider_options("ssh") == {"provider": "z"}
    with pytest.raises(ConfigError, match="did you mean 'provider'"):
        set_value("provders", "x")
    with pytest.raises(ConfigError, match="max_cost: 'much' is not allowed"):
        set_value("max_cost", "much")
    assert load_settings()["max_cost"] == 12.5
    assert set_value("provider", "local,ssh").value == ("local", "ssh")
    assert load_settings()["provider"] == ("local", "ssh")
    set_value("provider", "any")
    with pytest.raises(ConfigError, match="there is no provider 'sssh'; did you mean 'ssh'"):
        set_value("provider", "local,sssh")


def test_set_replaces_a_value_of_several_lines_and_nothing_that_looks_like_it(
    project: Path, flow_home: Path
) -> None:
    path = flow_home / "config.toml"
    path.write_text(
        'region = ["eu",\n  "max_cost = 1",\n]\n# a\u2028b\n"provider" = [\n  "aws",\n  "slurm",\n]\nspot = true'
    )
    set_value("provider", "local")
    set_value("max_cost", "3")
    unset_value("region")
    assert path.read_text() == '# a\u2028b\nprovider = "local"\nspot = true\nmax_cost = 3.0\n'


def test_set_keeps_a_link_into_a_repository_of_settings(
    project: Path, flow_home: Path, tmp_path: Path
) -> None:
    there, path = tmp_path / "dotfiles.toml", flow_home / "config.toml"
    there.write_text("max_cost = 3\n")
    path.symlink_to(there)
    set_value("provider", "local")
    assert path.is_symlink()
    assert there.read_text() == 'max_cost = 3\nprovider = "local"\n'


def test_two_changes_at_a_time_are_both_kept(project: Path, flow_home: Path) -> None:
    other = threading.Thread(target=set_value, args=("max_cost", "5"))

    def change(hosts: list[object]) -> list[object]:
        other.start()
        other.join(0.2)
        return [*hosts, "n1"]

    editing.change_hosts(flow_home / "config.toml", "lab", change)
    other.join(60)
    assert load_settings()["max_cost"] == 5
    assert load_settings().provider_options("ssh") == {"pools": {"lab": {"hosts": ["n1"]}}}


def test_set_in_a_home_that_is_not_there(project: Path, flow_home: Path) -> None:
    shutil.rmtree(flow_home)
    set_value("provider", "slurm")
    assert load_settings().provider == "slurm"


# The home


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home({}) == Path.home() / ".flowlite"
    assert home({"FLOW_HOME": "/x/y"}) == Path("/x/y")
    assert home({"FLOW_HOME": "~/y"}) == Path.home() / "y"
    assert home({"FLOW_HOME": "/usr/bin/../lib"}) == Path("/usr/lib").resolve()
    with pytest.raises(ConfigError, match="FLOW_HOME is 'x/y'; give an absolute path"):
        home({"FLOW_HOME": "x/y"})


def test_home_is_made_for_its_owner_alone(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_HOME", str(flow_home / "deep" / "er"))
    assert ensure_home().stat().st_mode & 0o777 == 0o700
    ensure_home().chmod(0o755)
    assert ensure_home().stat().st_mode & 0o777 == 0o700
    assert list(ensure_home().iterdir()) == []


def test_a_directory_that_all_users_share_is_no_home(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For root in a container, FLOW_HOME=/tmp took /tmp from everybody else."""
    shared = flow_home / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("FLOW_HOME", str(shared))
    with pytest.raises(ConfigError, match=rf"that all users share; .* {shared}/flowlite-\d+"):
        ensure_home()
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert list(shared.iterdir()) == []


def test_settings_of_another_user_are_not_read(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (flow_home / "config.toml").write_text('provider = "slurm"\n')
    if os.geteuid() == 0:
        os.chown(flow_home, USER_ID, USER_ID)
    else:
        monkeypatch.setattr(os, "getuid", lambda: USER_ID)
    for read in (load_settings, ensure_home):
        with pytest.raises(ConfigError, match="belongs to another user"):
            read()


def test_home_that_is_a_file(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (flow_home / "file").touch()
    for name in ("file", "file/below"):
        monkeypatch.setenv("FLOW_HOME", str(flow_home / name))
        with pytest.raises(ConfigError, match=r"FLOW_HOME .* cannot be used: it.* is a file"):
            ensure_home()


def test_home_on_a_full_disk(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(flow_home.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="the disk is full; free some space"):
        ensure_home()
    assert sorted(flow_home.iterdir()) == before


def test_home_that_cannot_be_written(flow_home: Path) -> None:
    code = (
        "import os, tempfile; from flowlite.settings.settings import ensure_home;"
        "os.getuid() or os.setuid(65534);"  # root may write everywhere
        "ensure_home()"
    )
    flow_home.chmod(0o755)
    lock = flow_home / "locked"
    lock.mkdir(mode=0o555)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FLOW_HOME": str(lock / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be used: Permission denied; make it writable for you" in done.stderr


def test_reading_settings_loads_no_large_library(flow_home: Path) -> None:
    code = (
        "import sys; from flowlite.settings.settings import load_settings, home; load_settings(); home();"
        "print([m for m in ('pydantic', 'typing_extensions', 'asyncio', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# The project's file in directories below it


def test_the_projects_file_holds_in_directories_below(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "flow.toml").write_text("max_price_per_hour = 40\n[ssh]\nuser = 'me'\n")
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    file = str(project.resolve() / "flow.toml")
    assert origin(load_settings(), "max_price_per_hour") == (40.0, file)
    assert load_settings().of_provider("ssh").origins == {("user",): file}
    # The nearest one counts, and it alone.
    (below.parent / "flow.toml").write_text("max_cost = 1\n")
    settings = load_settings()
    assert (settings["max_cost"], settings["max_price_per_hour"]) == (1.0, None)


def test_the_search_ends_in_the_home_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "home" / "code"
    below.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(project / "home"))
    monkeypatch.chdir(below)
    (project / "flow.toml").write_text("max_cost = 1\n")
    assert load_settings()["max_cost"] is None
    (project / "home" / "flow.toml").write_text("max_cost = 2\n")
    assert load_settings()["max_cost"] == 2.0


# Values that are checked when they are set


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("provider", "awss", "there is no provider 'awss'; did you mean 'aws'?"),
        (
            "provider",
            "modal",
            "there is no provider 'modal'; known: aws, local, mithril, slurm, ssh",
        ),
        ("max_run_time_hours", "soon", "give a number of hours above 0, or a time as in '1h30m'"),
        ("max_run_time_hours", "0", "give a number of hours above 0"),
        ("priority", "hgh", "did you mean 'high'?"),
        ("spot", "perhaps", "give true or false"),
    ],
)
def test_a_value_that_cannot_be_used_is_not_written(
    project: Path, flow_home: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        set_value(name, text)
    assert said in str(refused.value)
    assert not (flow_home / "config.toml").exists()


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("1h30m", 1.5),
        ("90m", 1.5),
        ("1 h 30 m", 1.5),
        ("2d", 48.0),
        (3, 3.0),
    ],
)
def test_hours_are_a_number_or_a_time(text: object, hours: float) -> None:
    from flowlite.settings import parse

    assert parse.hours(text) == hours


@pytest.mark.parametrize("wrong", ["", "h", "1h30", "-1", "nan", "inf", True, None, 0, "0s"])
def test_what_is_no_time_is_refused(wrong: object) -> None:
    from flowlite.settings import parse

    with pytest.raises(ValueError, match="1h30m"):
        parse.hours(wrong)
