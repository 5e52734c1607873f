"""Commands at fixed times: timers of the system, written and run with the real `crontab`."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.cli import system_timers
from flowlite.errors import ConfigError, NotFound
from flowlite.testing.hosts.root import USER_ID


def warnings_about(kind: str, *providers: str, **variables: str) -> str:
    environment = system_timers.environment_for([], variables, Path("/nowhere"))
    timer = a_timer(Path("/nowhere"), Path("/"), timer=kind, environment=environment)
    return " ".join(system_timers.warnings(timer, variables, providers))


def test_a_cron_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/comm").read_text().strip()
    monkeypatch.setattr(system_timers, "_DAEMONS", {own})
    assert warnings_about("cron") == ""
    monkeypatch.setattr(system_timers, "_DAEMONS", {"no such daemon"})
    assert "no cron daemon runs on this machine" in warnings_about("cron")
    assert "cron" not in warnings_about("systemd")


def test_a_systemd_that_ends_at_the_logout_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system_timers, "_LINGERING", tmp_path)
    assert "`loginctl enable-linger`" in warnings_about("systemd")
    (tmp_path / pwd.getpwuid(os.getuid()).pw_name).touch()
    assert warnings_about("systemd") == ""


def test_credentials_of_this_shell_that_a_timer_does_not_have_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_timers, "_DAEMONS", {Path("/proc/self/comm").read_text().strip()})
    assert "AWS_ACCESS_KEY_ID are not kept" in warnings_about("cron", "aws", AWS_ACCESS_KEY_ID="x")
    assert warnings_about("cron", "slurm", AWS_ACCESS_KEY_ID="x") == ""
    assert warnings_about("cron", "aws", AWS_PROFILE="x") == ""
    told = warnings_about("cron", "mithril", MITHRIL_API_KEY="x")
    assert "MITHRIL_API_KEY are not kept for the timer" in told
    assert "api_key_file" in told


def test_a_timer_finds_what_its_shell_finds() -> None:
    variables = {
        "AWS_REGION": "eu-north-1",
        "AWS_CONFIG_FILE": "/shared/aws",
        "MITHRIL_PROJECT": "lab",
        "https_proxy": "http://proxy:3128",
        "SSL_CERT_FILE": "/etc/own.pem",
        "SLURM_CONF": "/shared/slurm.conf",
        "USER": "ann",
    }
    given = {**variables, "AWS_SECRET_ACCESS_KEY": "secret", "EDITOR": "vi"}
    kept = system_timers.environment_for([], given, Path("/home"))
    assert kept == {**variables, "FLOW_HOME": "/home"}


@pytest.mark.parametrize(
    ("times", "calendar"),
    [
        ("0 3 * * *", ["03:00:00"]),
        ("*/30 8-9 * * mon-fri", ["Mon,Tue,Wed,Thu,Fri", "08,09:00,30:00"]),
        ("@weekly", ["Sun ", "00:00:00"]),
        ("5 4 1 jan,jul *", ["*-01,07-01 04:05:00"]),
        ("0 0 29 2 *", ["*-02-29 00:00:00"]),
        ("0 0 31 4 1", ["*-04-31 ", "Mon *-04-"]),
        ("0 0 1 * 7", ["-01 00:00:00", "Sun *-"]),
    ],
)
def test_times_of_cron_in_the_words_of_systemd(times: str, calendar: list[str]) -> None:
    found = " ; ".join(system_timers.on_calendar(times))
    assert all(part in found for part in calendar)


@pytest.mark.parametrize(
    "times",
    [
        "",
        "0 3 * *",
        "60 3 * * *",
        "0 24 * * *",
        "0 3 0 * *",
        "x * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "²  * * * *",
        "0 3 31 2,4 *",
    ],
)
def test_what_is_no_schedule(times: str) -> None:
    with pytest.raises(ConfigError, match="--schedule"):
        system_timers.parse_times(times)


@given(st.text(alphabet="0123456789*/-, abc@", max_size=30))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        found = system_timers.parse_times(text)
    except ConfigError:
        return
    assert all(found)


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_them() -> None:
    for times in ("0 3 * * *", "*/15 1-5,9 1 jan-mar mon", "@hourly"):
        subprocess.run(
            ["systemd-analyze", "calendar", *system_timers.on_calendar(times)],
            check=True,
            timeout=90,
        )


@pytest.fixture
def crontab() -> Iterator[None]:
    """This user's crontab, as it was before."""
    before = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    yield
    subprocess.run(["crontab", "-"], input=before, text=True, check=True)


def flow(home: Path, directory: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *words],
        env={
            **os.environ,
            "FLOW_HOME": str(home),
            "EXTRA": "from then",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere",
            "XDG_RUNTIME_DIR": "/nowhere",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("cron")
def test_packages_come_from_the_same_index(
    flow_home: Path, tmp_path: Path, crontab: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "UV_DEFAULT_INDEX": "https://host/simple",
        "PIP_EXTRA_INDEX_URL": "https://more/simple",
        "PROBE_TOKEN": "x",
        "UV_CACHE_DIR": "/not/for/nodes",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "requirements.txt").write_text("--find-links https://${PROBE_TOKEN}@host/links\n")
    text = "name: nightly\ncommand: [sh]\n"
    (tmp_path / "plain.yaml").write_text(text)
    (tmp_path / "nightly.yaml").write_text(f"{text}dependencies: requirements.txt\n")
    for file, names in (("plain", set()), ("nightly", given.keys() - {"UV_CACHE_DIR"})):
        flow(flow_home, tmp_path, "run", f"{file}.yaml", "--schedule", "0 3 * * *")
        kept = system_timers.read(flow_home, "nightly").environment
        assert given.keys() & kept.keys() == names
        flow(flow_home, tmp_path, "schedule", "rm", "nightly")


@pytest.mark.needs("cron")
def test_cron_runs_it_as_it_was_asked_for(flow_home: Path, tmp_path: Path, crontab: None) -> None:
    words = ["run", "--schedule", "0 3 * * *", "--name", "nightly", "-e", "EXTRA", "--"]
    flow(flow_home, tmp_path, *words, "sh", "-c", 'echo "$EXTRA" > out; pwd >> out')
    (row,) = json.loads(flow(flow_home, tmp_path, "schedule", "list", "--json"))["data"]
    assert (row["name"], row["schedule"], row["timer"]) == ("nightly", "0 3 * * *", "cron")
    lines = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=True).stdout
    (line,) = [each for each in lines.splitlines() if str(flow_home) in each]
    assert line.startswith("0 3 * * * ")
    # As cron runs it: in the home directory, with next to no variables.
    alone = {"HOME": "/", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    command = line.split(" ", 5)[5].replace(r"\%", "%")
    subprocess.run(["/bin/sh", "-c", command], env=alone, cwd="/", check=True, timeout=120)
    assert (tmp_path / "out").read_text() == f"from then\n{tmp_path}\n"
    log = Path(row["log"])
    assert "ended with exit code 0" in log.read_text()
    assert (log.stat().st_mode | log.with_suffix(".json").stat().st_mode) & 0o077 == 0
    # A run that has not ended is not joined by another.
    with open(log.with_suffix(".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["/bin/sh", "-c", command], env=alone, cwd="/", check=True, timeout=120)
    assert "left out, since the last run has not ended" in log.read_text()
    with pytest.raises(ConfigError, match="flow schedule rm nightly"):
        system_timers.add(flow_home, system_timers.read(flow_home, "nightly"))
    flow(flow_home, tmp_path, "schedule", "rm", "nightly")
    left = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    assert str(flow_home) not in left
    with pytest.raises(NotFound, match="flow schedule list"):
        system_timers.read(flow_home, "nightly")


def test_where_there_is_no_timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"apt install cron"):
        system_timers.choose()


# Hostile names, paths and files


def a_timer(home: Path, directory: Path, **changes: Any) -> system_timers.Timer:
    values: dict[str, Any] = {
        "name": "nightly",
        "times": "0 3 * * *",
        "words": ["run", "--yes", "--", "true"],
        "directory": str(directory),
        "owner": os.stat(directory).st_uid,
        "environment": {},
        "timer": "cron",
    }
    return system_timers.Timer(**{**values, **changes})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `crontab` and a `systemctl` that only keep what they are given; the crontab is not UTF-8."""
    there = tmp_path / "programs"
    there.mkdir()
    kept = there / "kept"
    kept.write_bytes(b"# m\xfcll\n\n0 1 * * * theirs\n")
    for name, text in {
        "crontab": f'if [ "$1" = -l ]; then cat {kept}; else cat > {kept}.new; mv {kept}.new {kept}; fi',
        "systemctl": "exit 0",
    }.items():
        (there / name).write_text(f"#!/bin/sh\n{text}\n")
        (there / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return kept


def test_lines_of_others_in_a_crontab_stay_byte_for_byte(
    programs: Path, tmp_path: Path, flow_home: Path
) -> None:
    before = programs.read_bytes()
    system_timers.add(flow_home, a_timer(flow_home, tmp_path))
    assert programs.read_bytes().startswith(before)
    assert programs.read_bytes().count(b"\n") == before.count(b"\n") + 1
    system_timers.remove(flow_home, "nightly")
    assert programs.read_bytes() == before


def test_an_environment_that_goes_with_its_command_has_no_timer(
    programs: Path, tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = programs.read_bytes()
    monkeypatch.setattr(sys, "prefix", "/home/me/.cache/uv/builds-v0/.tmpuUKT7W")
    with pytest.raises(ConfigError, match="removes the environment of"):
        system_timers.add(flow_home, a_timer(flow_home, tmp_path))
    assert programs.read_bytes() == before
    assert system_timers.names(flow_home) == []


@pytest.mark.parametrize("name", ["a\n* * * * * evil", "a\r", "a\\%b", "a\x1b[2J", "a\u2028b"])
@pytest.mark.parametrize("kind", ["cron", "systemd"])
def test_a_path_cannot_end_a_line_of_a_timer(
    programs: Path, tmp_path: Path, kind: str, name: str
) -> None:
    home, before = tmp_path / name, programs.read_bytes()
    home.mkdir(parents=True)
    with pytest.raises(ConfigError, match="characters that no timer of the system can have"):
        system_timers.add(home, a_timer(home, tmp_path, timer=kind))
    assert programs.read_bytes() == before
    assert not list(tmp_path.glob("config/systemd/user/*"))


@given(st.text(alphabet="ab %$;'\"`&|#\\\n", min_size=1, max_size=12))
def test_what_cron_gives_to_the_shell_is_one_command_with_the_paths_as_they_are(name: str) -> None:
    home = Path("/nowhere", name)
    try:
        system_timers._refuse_control_characters(home)
    except ConfigError:
        return
    line = system_timers._line(home, a_timer(home, Path("/")))
    assert "\n" not in line
    command = line.split(" ", 5)[5]
    # As cron does: an unescaped percent sign would end the command.
    assert not re.search(r"(?<!\\)%", command)
    words = shlex.split(command.replace(r"\%", "%"), comments=True)
    assert words[:2] == ["env", f"FLOW_HOME={home}"]
    assert words[-3:] == ["schedule", "run", "nightly"]


def test_a_unit_has_the_paths_as_they_are(programs: Path, tmp_path: Path) -> None:
    home = tmp_path / 'a $b %c "d" \\e'
    home.mkdir()
    system_timers.add(home, a_timer(home, tmp_path, timer="systemd"))
    (unit,) = (tmp_path / "config" / "systemd" / "user").glob("*.service")
    environment = next(line for line in unit.read_text().splitlines() if "FLOW_HOME" in line)
    # Of a variable's value, systemd replaces %, but not $.
    escaped = str(home).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    assert environment == f'Environment="FLOW_HOME={escaped}"'
    system_timers.remove(home, "nightly")
    assert not list((tmp_path / "config" / "systemd" / "user").iterdir())


def test_a_unit_can_be_written_by_its_user_only(
    programs: Path, tmp_path: Path, flow_home: Path
) -> None:
    before = os.umask(0o002)
    try:
        system_timers.add(flow_home, a_timer(flow_home, tmp_path, timer="systemd"))
    finally:
        os.umask(before)
    made = [tmp_path / "config", *(tmp_path / "config").rglob("*")]
    assert len(made) == 5
    assert not [each for each in made if each.stat().st_mode & 0o022]


def test_schedules_that_are_made_at_the_same_time_are_all_there(
    programs: Path, tmp_path: Path, flow_home: Path
) -> None:
    crontab = programs.parent / "crontab"
    # Whoever reads it writes it a while later.
    crontab.write_text(
        crontab.read_text().replace(f"cat {programs};", f"cat {programs}; sleep .1;")
    )
    names = ["one", "two", "three"]
    with ThreadPoolExecutor() as threads:
        for each in [a_timer(flow_home, tmp_path, name=name) for name in names]:
            threads.submit(system_timers.add, flow_home, each)
    assert sorted(system_timers.names(flow_home)) == sorted(names)
    assert all(f"schedule run {name} ".encode() in programs.read_bytes() for name in names)


def test_a_timer_that_systemd_refuses_leaves_nothing(
    programs: Path, tmp_path: Path, flow_home: Path
) -> None:
    asked = tmp_path / "asked"
    (programs.parent / "systemctl").write_text(
        f'#!/bin/sh\necho "$2" >> {asked}\nif [ "$2" = enable ]; then echo no >&2; exit 1; fi\n'
    )
    with pytest.raises(ConfigError, match=r"enable --now .*: no"):
        system_timers.add(flow_home, a_timer(flow_home, tmp_path, timer="systemd"))
    assert not list((tmp_path / "config" / "systemd" / "user").iterdir())
    assert asked.read_text().split() == ["daemon-reload", "enable", "disable", "daemon-reload"]
    assert system_timers.names(flow_home) == []


@pytest.mark.parametrize("content", ["", "[]", '{"name": 3}', "\x00", "[" * 10_000])
def test_a_damaged_schedule_is_named_and_can_be_removed(
    programs: Path, tmp_path: Path, flow_home: Path, content: str
) -> None:
    before = programs.read_bytes()
    for name in ("nightly", "weekly"):
        system_timers.add(flow_home, a_timer(flow_home, tmp_path, name=name))
    (flow_home / "schedules" / "nightly.json").write_text(content)
    with pytest.raises(ConfigError, match=r"nightly\.json is damaged; `flow schedule rm nightly`"):
        system_timers.read(flow_home, "nightly")
    (row,) = json.loads(flow(flow_home, tmp_path, "schedule", "list", "--json"))["data"]
    assert row["name"] == "weekly"
    for name in ("nightly", "weekly"):
        system_timers.remove(flow_home, name)
    assert programs.read_bytes() == before


@pytest.mark.parametrize("name", ["../planted", "/tmp/planted", "..", ".", "a b", "x\n"])
def test_a_name_leads_nowhere_else(flow_home: Path, tmp_path: Path, name: str) -> None:
    (flow_home / "schedules").mkdir()
    planted = json.dumps(asdict(a_timer(flow_home, tmp_path)))
    (flow_home / "planted.json").write_text(planted)
    for do in (system_timers.read, system_timers.run, system_timers.remove):
        with pytest.raises(NotFound):
            do(flow_home, name)


def test_nothing_runs_in_a_directory_that_somebody_else_has_made_anew(
    programs: Path, tmp_path: Path, flow_home: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    system_timers.add(
        flow_home, a_timer(flow_home, project, words=["run", "--yes", "--", "touch", "ran"])
    )
    project.rmdir()
    code, said = system_timers.run(flow_home, "nightly")
    assert (code, said.partition(str(project))[0]) == (1, "cannot be run in ")
    assert said in system_timers.log_of(flow_home, "nightly").read_text()
    project.mkdir()
    if os.geteuid() == 0:
        os.chown(project, USER_ID, USER_ID)
    else:
        theirs = a_timer(flow_home, project, owner=USER_ID)
        (flow_home / "schedules" / "nightly.json").write_text(json.dumps(asdict(theirs)))
    assert system_timers.run(flow_home, "nightly")[0] == 1
    said = system_timers.log_of(flow_home, "nightly").read_text()
    assert f"{project} belongs to user" in said
    assert not (project / "ran").exists()


def test_a_log_does_not_grow_for_ever(
    programs: Path, tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_timers, "_LONG_LOG", 500)
    project = tmp_path / "project"
    project.mkdir()
    system_timers.add(flow_home, a_timer(flow_home, project))
    project.rmdir()
    log = system_timers.log_of(flow_home, "nightly")
    for _ in range(20):
        assert system_timers.run(flow_home, "nightly")[0] == 1
    kept = [log.with_name("nightly.log.1"), log]
    assert sum(each.stat().st_size for each in kept) < 3000
    assert all("cannot be run in" in each.read_text() for each in kept)
