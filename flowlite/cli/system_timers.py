"""Timers of the system that start `flow run` at fixed times: a user's systemd, or cron. flowlite has no daemon.

FLOW_HOME/schedules/NAME.json   0600: what is run, where, and with which variables
FLOW_HOME/schedules/NAME.log    what it printed, and its exit codes; NAME.log.1 before the log had become long
FLOW_HOME/schedules/NAME.lock   held while it runs
FLOW_HOME/schedules/.timers.lock   held while a timer is made or removed
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from flowlite import python_request
from flowlite.errors import ConfigError, NotFound
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import make, write_atomically
from flowlite.settings import edited_files
from flowlite.supervise.background import importing, place

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
# Bytes of a log after which the next run begins a new one. It has all that the workers print, night after night.
_LONG_LOG = 32 << 20
_RANGES = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_WORDS = {
    "month": ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}  # fmt: skip
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Variables that a timer's command gets as they are now, beside those of flowlite and those that the task names.
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CONFIG_HOME"),
        *("VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "SSH_AUTH_SOCK", "SLURM_CONF"),
        *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"),
        *("MITHRIL_PROJECT", "MITHRIL_API_URL"),
        *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    }
)
# Credentials that are kept in no file of a timer, by provider, and what is used instead.
_CREDENTIALS = {
    "aws": (
        "AWS_ACCESS_KEY_ID",
        "and may have expired by then; it takes those of ~/.aws (`aws configure`, or a profile with AWS_PROFILE)",
    ),
    "mithril": (
        "MITHRIL_API_KEY",
        "which takes that of a file: FLOW_HOME/keys/mithril, or `api_key_file` in the table [mithril]",
    ),
}
# Has a file for each user whose systemd runs while the user is not logged in.
_LINGERING = Path("/var/lib/systemd/linger")
# The names of processes that read the tables of `crontab`.
_DAEMONS = frozenset({"cron", "crond", "fcron", "bcron-sched"})
_PROGRAM = f"{importing('sys.argv.pop(1)')}from flowlite.cli import program; sys.exit(program())"


@dataclass(frozen=True, slots=True)
class Timer:
    """One command at fixed times.

    Attributes:
        times: Five fields, as for cron.
        words: The words after `flow`.
        owner: The user id that the directory belonged to when the timer was made.
        timer: "systemd" or "cron".
    """

    name: str
    times: str
    words: list[str]
    directory: str
    owner: int
    environment: dict[str, str]
    timer: str

    def __post_init__(self) -> None:
        texts = [self.name, self.times, self.directory, self.timer, *self.words, *self.environment]
        if not all(isinstance(each, str) for each in (*texts, *self.environment.values())):
            raise TypeError("not what a timer may be")


def parse_times(text: str) -> list[list[int]]:
    """Returns the values of the five fields. Raises ConfigError."""
    fields = _SHORT.get(text.strip().lower(), text).split()
    if len(fields) != len(_RANGES):
        raise ConfigError(
            f"--schedule: {text!r} is no schedule; give five fields, minute hour day month weekday, as in '0 3 * * *' "
            f"for three o'clock each night, or one of {', '.join(sorted(_SHORT))}"
        )
    found = [_values(field, *limits, text) for field, limits in zip(fields, _RANGES, strict=True)]
    _, _, days, months, weekdays = found
    # With a weekday as well, either is enough.
    if len(weekdays) == 7 and days[0] > max(_DAYS[month - 1] for month in months):
        raise ConfigError(
            f"--schedule: {text!r} never comes: no month that it names has a day {days[0]}; give another day or month"
        )
    return found


def _values(field: str, kind: str, least: int, most: int, whole: str) -> list[int]:
    found: set[int] = set()
    words = _WORDS.get(kind, ())
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        ends = [
            str(words.index(end)) if end in words[:13] and end else end for end in (first, last)
        ]
        if span == "*":
            ends, dash = [str(least), str(most if kind != "weekday" else 6)], "-"
        elif not dash:
            # A step without an end counts to the highest value.
            ends = [ends[0], str(most) if step else ends[0]]
        numbers = [
            int(each) if each.isascii() and each.isdigit() else -1 for each in (*ends, step or "1")
        ]
        begin, end, every = numbers
        if not (least <= begin <= end <= most and every > 0):
            raise ConfigError(
                f"--schedule: {part!r} is no {kind} in {whole!r}; give numbers from {least} to {most}, *, ranges as in "
                "1-5, steps as in */15, or several of these, separated by commas"
            )
        found |= {
            value % 7 if kind == "weekday" else value for value in range(begin, end + 1, every)
        }
    return sorted(found)


def on_calendar(times: str) -> list[str]:
    """Returns a schedule in the form of systemd. If both day and weekday are given, either is enough, as for cron."""
    minutes, hours, days, months, weekdays = parse_times(times)
    clock = f"{_listed(hours)}:{_listed(minutes)}:00"
    names = ",".join(_WORDS["weekday"][day].capitalize() for day in weekdays)
    any_day, any_weekday = len(days) == 31, len(weekdays) == 7
    on_days = f"*-{_listed(months)}-{_listed(days)} {clock}"
    on_weekdays = f"{names} *-{_listed(months)}-* {clock}"
    if any_weekday:
        return [on_days]
    return [on_weekdays] if any_day else [on_days, on_weekdays]


def _listed(values: Sequence[int]) -> str:
    return ",".join(f"{value:02d}" for value in values)


# Timers of the system


def add(home: Path, timer: Timer) -> None:
    """Writes a timer. Raises ConfigError."""
    if not _NAME.fullmatch(timer.name):
        raise ConfigError(
            f"--name: {timer.name!r} cannot name a schedule; give --name NAME, of letters, digits, dots and dashes"
        )
    if python_request.is_of_one_command():
        raise ConfigError(
            f"--schedule: `uv run` removes the environment of {sys.executable} when this command ends (--with, "
            "--isolated), and nothing could run later; install flowlite in an environment that stays, as with `uv add`"
        )
    path = _path(home, timer.name)
    _refuse_control_characters(home)
    with _changing(home):
        if path.exists():
            raise ConfigError(
                f"there is a schedule {timer.name!r} already; `flow schedule rm {timer.name}` removes it, --name gives "
                "this one another name"
            )
        write_atomically(path, json.dumps(asdict(timer), indent=1).encode())
        try:
            if timer.timer == "systemd":
                _add_unit(home, timer)
            else:
                _change_crontab(home, timer.name, _line(home, timer))
        except BaseException:
            path.unlink()
            raise


def remove(home: Path, name: str) -> None:
    """Removes a timer, also one whose file is damaged; its log is kept. Raises NotFound, ConfigError."""
    _check_name(home, name)
    with _changing(home):
        if (_units() / f"{_unit(home, name)}.timer").exists():
            _remove_unit(home, name)
        else:
            _change_crontab(home, name, None)
        for kind in ("json", "lock"):
            _path(home, name).with_suffix(f".{kind}").unlink(missing_ok=True)


def _changing(home: Path) -> AbstractContextManager[None]:
    """Keeps other commands from changing timers meanwhile: a crontab is read, and written as a whole."""
    directory = home / "schedules"
    directory.mkdir(mode=0o700, exist_ok=True)
    return edited_files.locked(directory / ".timers")


def names(home: Path) -> list[str]:
    """Returns the names of all timers of a FLOW_HOME."""
    return sorted(path.stem for path in (home / "schedules").glob("*.json"))


def read(home: Path, name: str) -> Timer:
    """Returns a timer. Raises NotFound, ConfigError."""
    _check_name(home, name)
    try:
        return Timer(**json.loads(_path(home, name).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"{_path(home, name)} is damaged; `flow schedule rm {name}` removes the schedule"
        ) from None


def _check_name(home: Path, name: str) -> None:
    """Raises NotFound if there is no timer of that name."""
    if not _NAME.fullmatch(name) or not _path(home, name).exists():
        raise NotFound(f"no schedule {name!r}; `flow schedule list` shows those there are")


def log_of(home: Path, name: str) -> Path:
    """The log of a timer."""
    return _path(home, name).with_suffix(".log")


def run(home: Path, name: str) -> tuple[int, str]:
    """Runs the command of a timer now, unless it still runs. Returns its exit code, and what happened."""
    timer = read(home, name)
    with ExitStack() as opened:
        try:
            opened.enter_context(edited_files.locked(_path(home, name).with_suffix(""), wait=False))
            is_free = True
            _set_aside_long_log(log_of(home, name))
        except BlockingIOError:
            is_free = False
        log = opened.enter_context(open(log_of(home, name), "ab", buffering=0))
        os.chmod(log.name, 0o600)

        def logged(said: str) -> str:
            log.write(_stamped(said))
            return said

        if not is_free:
            return 0, logged("left out, since the last run has not ended")
        logged(f"flow {shlex.join(timer.words)}")
        try:
            if (owner := os.stat(timer.directory).st_uid) != timer.owner:
                # Another user may have made the directory again, with another program in it.
                whose = f"{timer.directory} belongs to user {owner} now, not {timer.owner}"
                again = f"`flow schedule rm {name}`, and make the schedule again in a directory of yours"
                return 1, logged(f"not run: {whose}; {again}")
            code = subprocess.run(
                _flow(timer.words),
                cwd=timer.directory,
                env=timer.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            ).returncode
        except OSError as error:
            return 1, logged(f"cannot be run in {timer.directory}: {error.strerror}")
        return code, logged(f"ended with exit code {code}")


def _set_aside_long_log(log: Path) -> None:
    """Lets a run begin a new log if the last one is long, in place of the one before."""
    with suppress(OSError):
        if log.stat().st_size > _LONG_LOG:
            os.replace(log, f"{log}.1")


def choose() -> str:
    """Returns which timers this system has: "systemd" or "cron". Raises ConfigError."""
    if shutil.which("systemctl") and _systemctl("show-environment", check=False) == "":
        return "systemd"
    if shutil.which("crontab"):
        return "cron"
    raise ConfigError(
        "--schedule needs a timer of the system: no systemd runs for this user (`systemctl --user status`), and there "
        "is no program crontab. Install cron (`apt install cron`), or have another scheduler run the command"
    )


def warnings(timer: Timer, given: Mapping[str, str], providers: Sequence[str]) -> list[str]:
    """Returns why a timer may not fire, or its command may fail where it works now.

    `given` has the variables of this process, and `providers` where the command may run.
    """
    found = [_of_a_systemd_that_ends() if timer.timer == "systemd" else _of_a_cron_that_is_absent()]
    for provider, (name, then) in _CREDENTIALS.items():
        if provider in providers and given.get(name) and name not in timer.environment:
            found.append(f"the credentials in {name} are not kept for the timer, {then}")
    return [each for each in found if each]


def _of_a_systemd_that_ends() -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    if (_LINGERING / user).exists():
        return ""
    return (
        "your systemd ends when you log out, so that nothing will start it then, and what it has started is ended; "
        "`loginctl enable-linger` keeps it"
    )


def _of_a_cron_that_is_absent() -> str:
    if not sys.platform.startswith("linux"):
        return ""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if Path("/proc", name, "comm").read_text().strip() in _DAEMONS:
                    return ""
    return "no cron daemon runs on this machine, so that nothing will start it; start one (`service cron start`)"


def environment_for(named: Sequence[str], given: Mapping[str, str], home: Path) -> dict[str, str]:
    """Returns the variables that a timer's command gets: a timer itself has almost none."""
    kept = {k: v for k, v in given.items() if k in _KEPT or k in named or k.startswith("FLOW_")}
    return {**kept, "FLOW_HOME": str(home)}


def _flow(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-c", _PROGRAM, place(), *words]


def _refuse_control_characters(home: Path) -> None:
    """Raises ConfigError if a path in the timer has what ends a line of a crontab or a unit."""
    for path in (str(home), *_flow(())):
        if path != _PROGRAM and (not path.isprintable() or "\\%" in path):
            raise ConfigError(
                f"--schedule: the path {path!r} has characters that no timer of the system can have; use another one"
            )


def _line(home: Path, timer: Timer) -> str:
    command = shlex.join(["env", f"FLOW_HOME={home}", *_flow(["schedule", "run", timer.name])])
    # In a crontab, a percent sign ends the command.
    return f"{timer.times} {command} {_mark(home, timer.name)}".replace("%", r"\%")


def _mark(home: Path, name: str) -> str:
    return f"# flowlite {name} of {home}"


def _change_crontab(home: Path, name: str, line: str | None) -> None:
    # The user's own lines may be in any encoding.
    done = subprocess.run(
        ["crontab", "-l"], capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode != 0 and "no crontab" not in done.stderr:
        raise ConfigError(f"crontab -l: {done.stderr.strip()}")
    mark = _mark(home, name).replace("%", r"\%")
    kept = [each for each in done.stdout.removesuffix("\n").split("\n") if not each.endswith(mark)]
    text = "\n".join([*kept, *([line] if line else []), ""])
    done = subprocess.run(
        ["crontab", "-"],
        input=text,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    if done.returncode != 0:
        raise ConfigError(f"crontab refuses the schedule: {done.stderr.strip()}")


def _add_unit(home: Path, timer: Timer) -> None:
    unit, directory = _unit(home, timer.name), _units()
    # systemd runs what these files name as this user. Other users must not write there, even if the umask allows it.
    make(str(directory))
    calendar = "".join(f"OnCalendar={each}\n" for each in on_calendar(timer.times))
    about = f"[Unit]\nDescription=flowlite: {timer.name}\n\n"
    # Of a command, systemd replaces $ as well.
    words = [_quoted(word).replace("$", "$$") for word in _flow(["schedule", "run", timer.name])]
    service = f"[Service]\nType=oneshot\nEnvironment={_quoted(f'FLOW_HOME={home}')}\nExecStart={' '.join(words)}\n"
    # Supervisors outlive the command that has started them.
    timed = f"{about}[Timer]\n{calendar}\n[Install]\nWantedBy=timers.target\n"
    write_atomically(directory / f"{unit}.service", f"{about}{service}KillMode=process\n")
    write_atomically(directory / f"{unit}.timer", timed)
    try:
        _systemctl("daemon-reload")
        _systemctl("enable", "--now", f"{unit}.timer")
    except BaseException:
        # It may have taken effect all the same, and would start what is not there any more.
        _remove_unit(home, timer.name, check=False)
        raise


def _remove_unit(home: Path, name: str, *, check: bool = True) -> None:
    unit = _unit(home, name)
    _systemctl("disable", "--now", f"{unit}.timer", check=check)
    for kind in ("timer", "service"):
        (_units() / f"{unit}.{kind}").unlink(missing_ok=True)
    _systemctl("daemon-reload", check=check)


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _systemctl(*words: str, check: bool = True) -> str:
    """Runs `systemctl --user`. Returns what it complained about."""
    argv = ["systemctl", "--user", *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        said = (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
    if said and check:
        raise ConfigError(f"{shlex.join(argv)}: {said}")
    return said


def _units() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"


def _unit(home: Path, name: str) -> str:
    # Two FLOW_HOMEs may have schedules of one name.
    return f"flowlite-{name}-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def _path(home: Path, name: str) -> Path:
    return home / "schedules" / f"{name}.json"


def _stamped(text: str) -> bytes:
    return f"== {datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n".encode()
