"""Settings: keyword > `FLOW_…` variable > `flow.toml` > `FLOW_HOME/config.toml` > default.

`flow.toml` is in the current directory, or in the nearest directory above it (`project_file`). Its settings that can
run programs or redirect credentials have an effect only once the file is trusted (`trust.py`).

Standard library only: the supervisor reads them too. `SETTINGS` is the only list of what can be set.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import ownership
from flowlite.settings import edited_files, entry_points, parse, trust
from flowlite.settings.flow_home import check_owner
from flowlite.settings.flow_home import ensure_home as ensure_home
from flowlite.settings.flow_home import home as home
from flowlite.settings.parse import duration_seconds as duration_seconds
from flowlite.settings.private_files import directories_above
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.settings.suggest import did_you_mean

PROJECT_FILE = "flow.toml"
HOME_FILE = "config.toml"
# The tables `[providers.NAME]`, or `[NAME]`, are passed to the adapter of that name unchanged.
PROVIDERS_TABLE = "providers"
# Adapters that come with flowlite. Other adapters are searched for only if a table has an unknown name.
_ADAPTERS = ("local", "ssh", "slurm", "aws", "mithril")
# Python's parser takes time and memory with the square of a key's depth: a file of 200 kB would take all of both.
_DEEP_KEY = re.compile(rb"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){40}""")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that exists.

    Attributes:
        read: Parses a TOML value or a variable's text; its ValueError says what is allowed.
        task_option: Whether it is the default of the task option of the same name.
    """

    read: Callable[[object], Any]
    default: Any
    help: str
    task_option: bool = False


SETTINGS: dict[str, Setting] = {
    "provider": Setting(
        parse.words, "local", "where nodes come from; several may be listed", task_option=True
    ),
    "region": Setting(
        parse.words, None, "region or zone at the provider; several may be listed", task_option=True
    ),
    "priority": Setting(
        parse.choice("low", "med", "high"),
        "med",
        "pricing tier, where there are tiers",
        task_option=True,
    ),
    "spot": Setting(
        parse.truth_or("prefer"),
        None,
        "whether machines may be taken away in exchange for a lower price; prefer allows both",
        task_option=True,
    ),
    "max_price_per_hour": Setting(
        parse.positive, None, "cap in US dollars per instance and hour", task_option=True
    ),
    "max_run_time_hours": Setting(
        parse.hours, None, "cap in hours from start, also as in 1h30m", task_option=True
    ),
    "max_cost": Setting(
        parse.positive, None, "cap in US dollars for a whole task", task_option=True
    ),
    "keep_warm": Setting(
        parse.duration_seconds,
        None,
        "how long nodes and imports are kept for the next task, as in 10m; 0 for not at all",
        task_option=True,
    ),
    "sync": Setting(
        parse.truth,
        None,
        "whether the project's files travel; unset: to other machines, while this one uses the directory itself",
        task_option=True,
    ),
    "max_project_size": Setting(
        parse.size,
        1_000_000_000,
        "most that travels of a project for one task, as in 500MB or 2GB",
    ),
    "show_logs": Setting(
        parse.choice("always", "never"),
        "always",
        "whether a program shows the task that it waits for, on standard error",
    ),
    "confirm": Setting(
        parse.truth,
        True,
        "whether commands ask, on a terminal, before they launch what costs money",
    ),
    "keep_inputs_days": Setting(
        parse.positive,
        30.0,
        "days for which the inputs of ended tasks are kept, for `flow rerun`",
    ),
    "keep_logs_days": Setting(
        parse.positive, 90.0, "days for which the logs of ended tasks are kept"
    ),
    "keep_gb": Setting(
        parse.positive, 20.0, "room for inputs and logs of all ended tasks; the oldest go first"
    ),
    "local_tasks": Setting(
        parse.whole,
        None,
        "tasks that run on this machine at a time; others wait (8, or 2 per core)",
    ),
    "local_warm": Setting(
        parse.whole,
        3,
        "environments kept warm on this machine at a time; the one unused for longest goes first",
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """The current value of a setting, and where it was set.

    Attributes:
        trusted: Whether the project's file that sets it is trusted; None if that does not matter.
    """

    name: str
    value: Any
    origin: str
    help: str
    trusted: bool | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved. `entries` has the origin of each.

    Attributes:
        project: The settings of the project's file that need trust.
    """

    entries: Mapping[str, Entry]
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    project: Project | None = None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __getitem__(self, name: str) -> Any:
        return self.entry(name).value

    def entry(self, name: str) -> Entry:
        """A setting with its origin. Raises ConfigError if there is no setting of this name."""
        if name not in self.entries:
            known = f"; known: {', '.join(SETTINGS)}"
            raise ConfigError(f"no setting {name!r}{did_you_mean(name, SETTINGS) or known}")
        return self.entries[name]

    @property
    def provider(self) -> str:
        """Name of the provider. Raises ConfigError if several are set, or any."""
        found = self["provider"]
        if found == "any" or not isinstance(found, str):
            said = found if isinstance(found, str) else ", ".join(found)
            raise ConfigError(
                f"provider is {said}, and this is done by one; name it with --provider"
            )
        return found

    @property
    def local_tasks(self) -> int:
        """Tasks that the local provider runs at a time."""
        return int(self["local_tasks"] or max(8, 2 * (os.cpu_count() or 1)))

    @property
    def local_warm(self) -> int:
        """Python environments that are kept warm on this machine at a time."""
        return int(self["local_warm"])

    def task_options(self) -> dict[str, Any]:
        """The task options that are set; for `TaskConfig.with_defaults`."""
        return {
            entry.name: entry.value
            for entry in self
            if SETTINGS[entry.name].task_option and entry.origin != "default"
        }

    def provider_options(self, name: str) -> dict[str, Any]:
        """The table `[NAME]` (or `[providers.NAME]`) of the files, the project's over the user's.

        Raises ConfigError if the project's file sets something there that needs trust, and is not trusted.
        """
        if self.project is not None:
            self.project.require_trust(name)
        return dict(self.providers.get(name, {}))

    def of_provider(self, name: str) -> ProviderSettings:
        """The settings of one provider: its table from the files, with the file of each value."""
        origins = {
            keys[1:]: os.path.abspath(file)
            for keys, file in self.origins.items()
            if keys[0] == name and keys[1:]
        }
        return ProviderSettings(name, self.provider_options(name), origins)

    def provider_entries(self) -> list[Entry]:
        """The providers' tables, with one entry for each value, such as `ssh.pools.lab.hosts`."""
        found = []
        for path, file in self.origins.items():
            value: Any = self.providers
            for key in path:
                value = value[key]
            help_ = f"option of the provider {path[0]}"
            trusted = None
            if self.project is not None and file == str(self.project.path):
                trusted = self.project.trusts(path[0], dict.fromkeys((*path[1:2], path[-1]), value))
            found.append(Entry(".".join(path), value, file, help_, trusted))
        return found


@dataclass(frozen=True, slots=True)
class Project:
    """The settings of a project's file, some of which need trust.

    Attributes:
        path: The file.
        content: What it had when it was read.
        unasked: Those outside of tables that need trust, with the reasons.
        tables: Its tables, by provider.
        trusted: Whether its current content is trusted.
        changed: Whether an earlier content was trusted.
    """

    path: Path
    content: bytes | None
    unasked: Mapping[str, str]
    tables: Mapping[str, Mapping[str, Any]]
    trusted: bool
    changed: bool

    def needing(self) -> list[tuple[str, str]]:
        """The settings that need trust, such as `ssh.config_file`, with the reasons."""
        return [
            *self.unasked.items(),
            *(
                (f"{name}.{key}", reason)
                for name, table in self.tables.items()
                for key, reason in trust.needs_trust(name, table)
            ),
        ]

    def trusts(self, provider: str, table: Mapping[str, Any]) -> bool | None:
        """Whether these options of a provider are trusted; None if they need no trust."""
        return self.trusted if any(trust.needs_trust(provider, table)) else None

    def require_trust(self, provider: str) -> None:
        """Raises ConfigError if the file is not trusted and has settings of a provider that need trust."""
        needing = list(trust.needs_trust(provider, self.tables.get(provider, {})))
        if self.trusted or not needing:
            return
        has = "has changed since it was trusted" if self.changed else "is not trusted yet"
        settings = "; ".join(f"{key} ({reason})" for key, reason in needing)
        raise ConfigError(
            f"{self.path}: this file {has}, and [{provider}] sets what counts only in a file that you trust: "
            f"{settings}. Read it, then accept it as it is with `flow config trust`"
        )


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Reads all settings.

    Args:
        overrides: Values given as keywords or on the command line; None counts as not given.
        directory: Where the search for `flow.toml` begins; by default the current directory.
        environment: Variables; by default those of this process.

    Raises:
        ConfigError: A file or variable has an unknown name or a wrong value; the message says which, and where.
    """
    variables = os.environ if environment is None else environment
    entries = {
        name: Entry(name, setting.default, "default", setting.help)
        for name, setting in SETTINGS.items()
    }
    providers: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    project = project_file(directory)
    own = home(variables)
    check_owner(own)
    users = entries
    for path in (own / HOME_FILE, project):
        content = _content_of(path)
        plain, tables = _parts(_parsed(content, path), path)
        _merge(providers, tables, str(path), (), origins)
        users, entries = entries, dict(entries)
        for name, value in plain.items():
            entries[name] = _entry(name, value, str(path))
    # The second file is that of the project.
    of_project = _project(project, content, plain, tables, variables)
    if of_project is not None and not of_project.trusted:
        entries |= {name: users[name] for name in of_project.unasked}
    for name in SETTINGS:
        text = variables.get(f"FLOW_{name.upper()}")
        if text:
            entries[name] = _entry(name, text, f"FLOW_{name.upper()}")
    for name, value in (overrides or {}).items():
        if value is not None:
            entries[name] = _entry(name, value, "keyword")
    return Settings(entries, providers, origins, of_project)


def read_project() -> Project | None:
    """The settings of the project's file that need trust; None if there are none. Raises ConfigError."""
    path = project_file()
    content = _content_of(path)
    return _project(path, content, *_parts(_parsed(content, path), path), os.environ)


def project_file(directory: Path | None = None) -> Path:
    """The path of the project's file: in a directory or the nearest one above it; if there is none, in the directory.

    Above the directory itself, only files that no other user could have created count
    (`private_files.directories_above`). One of another user in a directory such as /tmp is not read.
    """
    here = directory or Path()
    own = here / PROJECT_FILE
    if os.path.lexists(own):
        return own
    for at in directories_above(here):
        path = at / PROJECT_FILE
        if os.path.lexists(path):
            return path if path.lstat().st_uid == os.getuid() else own
    return own


def _project(
    path: Path,
    content: bytes | None,
    plain: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, str],
) -> Project | None:
    unasked = {
        name: reason
        for name, reason in trust.UNASKED.items()
        if name in plain and not _entry(name, plain[name], str(path)).value
    }
    if not unasked and not any(
        any(trust.needs_trust(name, table)) for name, table in tables.items()
    ):
        return None
    where = home(variables)
    directories = variables.get(trust.VARIABLE, "")
    trusted = trust.is_trusted(path, content, tables, where, directories)
    changed = not trusted and trust.was_trusted(path, where)
    return Project(path, content, unasked, tables, trusted, changed)


def _parts(content: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the content of a file into plain settings and tables of providers. Raises ConfigError."""
    plain: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for name, value in content.items():
        if name == PROVIDERS_TABLE:
            _check_providers(value, path)
            own = value
        elif isinstance(value, dict) and name not in SETTINGS and _is_adapter(name):
            own = {name: value}
        else:
            plain[name] = value
            continue
        _check_given_once(tables, own, path)
        _merge(tables, own, str(path), (), {})
    return plain, tables


def _check_given_once(
    before: Mapping[str, Any], table: Mapping[str, Any], path: Path, above: str = ""
) -> None:
    """Raises ConfigError if a file gives an option of a provider under both names of its table."""
    for name in before.keys() & table.keys():
        key, values = f"{above}{name}", (before[name], table[name])
        if all(isinstance(each, dict) for each in values):
            _check_given_once(*values, path, f"{key}.")
            continue
        provider, _, option = key.partition(".")
        raise ConfigError(
            f"{path}: {option or key} is given under [{provider}] and under [{PROVIDERS_TABLE}.{provider}], which are "
            "the same table; keep one of them"
        )


def _entry(name: str, value: object, origin: str) -> Entry:
    setting = SETTINGS.get(name)
    if setting is None:
        if isinstance(value, dict):
            raise ConfigError(
                f"{origin}: [{name}] is neither a provider nor a setting"
                f"{did_you_mean(name, (*_ADAPTERS, PROVIDERS_TABLE))}"
            )
        known = ", ".join(SETTINGS)
        raise ConfigError(
            f"{origin}: no setting {name!r}{did_you_mean(name, SETTINGS) or f'; known: {known}'}"
        )
    try:
        return Entry(name, setting.read(value), origin, setting.help)
    except ValueError as error:
        raise ConfigError(f"{origin}: {name}: {value!r} is not allowed; give {error}") from None


# Editors on Windows write a byte order mark first, which is invisible and no TOML.
_UTF_8 = "utf-8-sig"


def _content_of(path: Path) -> bytes | None:
    """The content of a settings file; None if there is none. Raises ConfigError."""
    # Where all users may create files, another one decides nothing.
    return None if ownership.taken(str(path)) else trust.content_of(path)


def _parsed(text: bytes | None, path: Path) -> dict[str, Any]:
    if text is None:
        return {}
    import tomllib

    try:
        if _DEEP_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text.decode(_UTF_8))
    except ValueError as error:  # of TOML, or of UTF-8
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None


def _check_providers(value: object, path: Path) -> None:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ConfigError(f"{path}: write the options of a provider under [providers.NAME]")


def _is_adapter(name: str) -> bool:
    return name in _ADAPTERS or name in entry_points.adapters()


def _no_adapter(name: str) -> str:
    known = sorted({*_ADAPTERS, *entry_points.adapters()})
    return (
        f"there is no provider {name!r}{did_you_mean(name, known, 0.7)}; known: {', '.join(known)}"
    )


def _merge(
    found: dict[str, Any],
    table: Mapping[str, Any],
    file: str,
    above: tuple[str, ...],
    origins: dict[tuple[str, ...], str],
) -> None:
    """Merges a file's tables into those of the file before it, and records the origin of each value."""
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict):
            inner = found.get(name)
            found[name] = dict(inner) if isinstance(inner, dict) else {}
            origins.pop(path, None)
            _merge(found[name], value, file, path, origins)
            if not value:
                origins[path] = file
        else:
            for old in [each for each in origins if each[: len(path)] == path]:
                del origins[old]
            found[name] = value
            origins[path] = file


# Writing settings


def set_value(name: str, text: str) -> Entry:
    """Sets one setting in the file of FLOW_HOME, without changing anything else in it. Raises ConfigError."""
    target = ensure_home() / HOME_FILE
    table, _, key = name.rpartition(".")
    if table and _is_adapter(table.partition(".")[0]):
        raise ConfigError(
            f"options of a provider are written by hand: in {target}, {key} under [{table}]"
        )
    entry = _entry(name, text, str(target))
    if name == "provider":
        for each in [entry.value] if isinstance(entry.value, str) else entry.value:
            if each != "any" and not _is_adapter(each):
                raise ConfigError(f"provider: {_no_adapter(each)}")
    _rewrite(target, name, f"{name} = {_toml(entry.value)}\n")
    return entry


def unset_value(name: str) -> None:
    """Removes one setting from the file of FLOW_HOME. Raises ConfigError."""
    if name not in SETTINGS:
        raise ConfigError(f"no setting {name!r}{did_you_mean(name, SETTINGS)}")
    _rewrite(home() / HOME_FILE, name, "")


def _toml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _rewrite(path: Path, name: str, line: str) -> None:
    """Replaces the statement of one setting by a line, or adds the line in front of the first table."""
    with edited_files.locked(path):
        content = _content_of(path)
        _parsed(content, path)  # refuses to touch a file that is not TOML
        # Only "\n" ends a line of TOML.
        lines = io.StringIO((content or b"").decode(_UTF_8)).readlines()
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        begin, end = _place_of(name, lines)
        lines[begin:end] = [line]
        edited_files.replace(path, "".join(lines).encode())


def _place_of(name: str, lines: Sequence[str]) -> tuple[int, int]:
    """Returns where the statement of a setting begins and ends; if there is none, the place before the first table."""
    import tomllib

    begin = 0
    for end, line in enumerate(lines, 1):
        if end == begin + 1 and line.lstrip().startswith("["):
            break
        # An array or a text may go on in further lines.
        with suppress(tomllib.TOMLDecodeError):
            if name in tomllib.loads("".join(lines[begin:end])):
                return begin, end
            begin = end
    return begin, begin
