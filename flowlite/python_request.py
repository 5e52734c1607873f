"""What `python=` and `dependencies=` request of a node, and the package indexes for it.

The two results are stored differently:

    order(config)        travels to the node with the plan (`NodeSettings.python_spec`)
    index_settings()     travels in a file that only its owner can read: URLs of indexes may contain passwords
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

_INCLUDE = r"(?:-r|--requirement(?=[ =]))[ =]*(.+)"
_CONSTRAINT = r"(?:-c|--constraint(?=[ =]))[ =]*(.+)"
_EDITABLE = r"(?:-e|--editable)[ =]*(.+)"
_FIND_LINKS = r"(?:-f|--find-links)[ =]*(.+)"
# What may follow a requirement on its line: `--hash=sha256:…`.
_ITS_OPTIONS = r"\s--?[a-z].*"
_NAMED = r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*@\s*(?P<place>.*)"
_BY_VERSION = r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*(?:[<>=!~]{1,3}\s*[\w*$][^;]*|\([^;]*\)\s*)?(?:;.*)?"
_ADDRESS = r"[A-Za-z][A-Za-z0-9.-]*(?:\+[A-Za-z]+)?://"
_ADDRESS_HERE = r"(?:[A-Za-z]+\+)?file:"
_PATH = r"\.{1,2}(?:$|\[)|[^;@<>=!~\s]*/|.*\.(?:whl|zip|tar\.(?:gz|bz2|xz)|tgz)(?:$|[\[;\s])"
# As pip and uv read it in a requirements file.
_VARIABLE = r"\$\{([A-Z0-9_]+)\}"
# Settings of pip, each with the equivalent setting of uv and its separator. pip separates by blanks.
_PIP = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_TRAVELS = (
    r"UV_(?:DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|INDEX_STRATEGY|INSECURE_HOST"
    r"|INDEX_\w+_(?:USERNAME|PASSWORD)|PRERELEASE|RESOLUTION|EXCLUDE_NEWER|TORCH_BACKEND|HTTP_TIMEOUT|HTTP_RETRIES"
    r"|PYTHON_INSTALL_MIRROR|PYTHON_DOWNLOADS_JSON_URL)"
)
# Where uv makes the environments of `uv run --with` and `uv run --isolated`.
_OF_ONE_COMMAND = r".*/builds-v\d+/\.tmp[^/]*"
# The oldest minor version of Python that flowlite runs on.
_OLDEST = (3, 11)
_FALSE = frozenset({"", "0", "false", "no", "off"})


def version_here() -> str:
    """Returns the minor version of this Python, such as "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def is_of_one_command() -> bool:
    """Whether the environment of this Python is removed when its command ends, as by `uv run --with`."""
    return re.fullmatch(_OF_ONE_COMMAND, sys.prefix) is not None


def of_active_environment() -> str | None:
    """The shell's `python`, if it is that of an active environment, and flowlite is installed in another one.

    So it is with `uv tool install` and pipx.
    """
    from shutil import which

    found = which("python")
    if found is None:
        return None
    names = ("VIRTUAL_ENV", "CONDA_PREFIX")
    active = {os.path.realpath(path) for name in names if (path := os.environ.get(name))}
    prefix = os.path.realpath(os.path.dirname(os.path.dirname(found)))
    return found if prefix in active and prefix != os.path.realpath(sys.prefix) else None


def order(config: TaskConfig) -> dict[str, Any] | None:
    """Returns the Python that the workers need: {"python", "requirements"}; None if any will do.

    `requirements` is the text of a requirements file, or None if nothing is installed. With "any", an image may have
    another version.

    Raises:
        ConfigError: A function would run on another Python, or a requirement would mean something else on a node.
    """
    here = version_here()
    requirements = requirements_text(config.dependencies)
    wanted = config.python or here
    given = {*os.environ, *config.environment, *(secret.name for secret in config.secrets)}
    if missing := sorted(variables_in(requirements) - given):
        raise ConfigError(
            f"dependencies: ${{{missing[0]}}} has no value: the variable is not set here. Set it before you submit; it "
            "is sent to the nodes in a file that only its owner can read"
        )
    if config.command is None and minor_of(wanted) != here:
        # flowlite itself cannot be installed in an older Python.
        too_old = tuple(map(int, minor_of(wanted).split("."))) < _OLDEST
        ways = "Leave" if too_old else f"Submit from a Python {minor_of(wanted)}, leave"
        raise ConfigError(
            f"python: {wanted} was asked for, and functions travel only to the Python they come from, {here} "
            f"({sys.executable}). {ways} the option out, or run a command"
        )
    if config.command is not None and config.python is None and requirements is None:
        return None
    found: dict[str, Any] = {"python": wanted, "requirements": requirements}
    if config.image is not None and config.command is not None and config.python is None:
        # No version was requested, so that of the image is used.
        found["any"] = True
    return found


def plan_options(config: TaskConfig) -> dict[str, Any]:
    """Returns the Python that a task needs as options of a plan.

    "minor" is the preferred version for an agent on a machine of its own. "python_spec" is what the node must create
    if that is not enough. Raises ConfigError.
    """
    found = order(config)
    return {"minor": found and minor_of(found["python"]), "python_spec": found}


def for_node(wanted: Mapping[str, Any] | None, version: str) -> dict[str, Any] | None:
    """Returns the request for a node that has a Python of this version; None if that Python is sufficient."""
    if wanted is None:
        return None
    python = str(wanted["python"])
    fits = version == python or version.startswith(f"{python}.")
    return None if fits and wanted.get("requirements") is None else dict(wanted)


def minor_of(version: str) -> str:
    """Returns 3.11 for 3.11.7."""
    return ".".join(version.split(".")[:2])


# Requirements


def requirements_text(given: str | tuple[str, ...] | list[str]) -> str | None:
    """Returns `dependencies=` as the text of one requirements file, with included files inserted; None without any.

    Raises ConfigError if a file cannot be read, or names something that exists on this machine only.
    """
    if not given:
        return None
    if isinstance(given, str):
        lines = list(_lines_of(Path(given).expanduser(), ()))
    else:
        lines = [line for each in given for line in _lines_in(each, Path(), (), "dependencies")]
    return "".join(f"{line}\n" for line in lines)


def _lines_of(path: Path, within: tuple[Path, ...]) -> Iterator[str]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"dependencies: {path.absolute()} cannot be read: {why}") from None
    if path.resolve() in within:
        raise ConfigError(f"dependencies: {path} includes itself")
    yield from _lines_in(text, path.parent, (*within, path.resolve()), str(path))


def _lines_in(text: str, beside: Path, within: tuple[Path, ...], where: str) -> Iterator[str]:
    """Yields the lines of a text that stands in a file, or in a list. Files that it includes are `beside` it."""
    for line in _joined(text):
        included = re.fullmatch(_INCLUDE, line)
        if included:
            yield from _lines_of(beside / _unquoted(included[1]), within)
        elif re.fullmatch(_CONSTRAINT, line):
            raise ConfigError(
                f"dependencies: {where} has {line!r}: constraints are not sent along. Write the versions into the "
                "requirements themselves, as `uv pip compile` and `pip freeze` do"
            )
        else:
            _check(line, where)
            yield line


def _joined(text: str) -> Iterator[str]:
    """Yields lines without comments. Lines that end in a backslash are joined with the next."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            yield line


def _check(line: str, where: str) -> None:
    """Raises ConfigError for a line that would fail on a node, where time costs money already."""
    meant = re.sub(_VARIABLE, lambda found: os.environ.get(found[1], found[0]), line)
    if editable := re.fullmatch(_EDITABLE, meant):
        place = _unquoted(editable[1])
        if re.match(_ADDRESS_HERE, place) or not re.match(_ADDRESS, place):
            raise _only_here(line, where)
        raise ConfigError(
            f"dependencies: {_shown(line)} ({where}) asks for an editable install, which uv makes of local "
            "directories only. Write the address without -e"
        )
    if links := re.fullmatch(_FIND_LINKS, meant):
        # An absolute path may be a file system that the nodes have, too.
        place = _unquoted(links[1])
        if not place.startswith("/") and not re.match(_ADDRESS, place):
            raise _only_here(line, where)
        return
    if re.match(r"--?[a-zA-Z]", meant):
        return
    wanted = without_options(meant)
    named = re.fullmatch(_NAMED, wanted)
    place = named["place"] if named else wanted
    if re.match(_ADDRESS_HERE, place):
        raise _only_here(line, where)
    if is_address(place) or place.startswith("${"):
        return
    if named or re.match(_PATH, place):
        raise _only_here(line, where)
    if not re.fullmatch(_BY_VERSION, wanted):
        raise ConfigError(
            f"dependencies: {_shown(line)} ({where}) is not a requirement. A requirements file has one on each "
            "line, such as `torch==2.5.1`; `uv export --no-emit-project`, `poetry export` and `pip freeze` write such "
            "a file"
        )


def without_options(line: str) -> str:
    """Returns a requirement without what pip may be told about it on the same line (`--hash=sha256:…`)."""
    return re.sub(_ITS_OPTIONS, "", line).strip()


def is_address(requirement: str) -> bool:
    """Whether a requirement is an address alone, such as `git+https://host/package.git`."""
    return re.match(_ADDRESS, requirement) is not None


def _only_here(line: str, where: str) -> ConfigError:
    return ConfigError(
        f"dependencies: {_shown(line)} ({where}) lies on this machine only. Modules of your project travel with the "
        "function by themselves; a package can be named by an index or by an address (https://…, git+https://…)"
    )


def _shown(line: str) -> str:
    from flowlite.node.python_env.uv import without_credentials

    return repr(without_credentials(line))


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def variables_in(requirements: str | None) -> set[str]:
    """Returns the variables that a requirements file names: `--index-url https://${TOKEN}@host/simple`."""
    return set(re.findall(_VARIABLE, requirements or ""))


# Package indexes


def index_settings(
    environment: Mapping[str, str] | None = None, files: list[Path] | None = None
) -> dict[str, str]:
    """Returns variables for uv on the nodes: those set for uv here, and settings of pip here (variables, pip.conf)."""
    variables = os.environ if environment is None else environment
    found = {
        name: value for name, value in variables.items() if re.fullmatch(_TRAVELS, name) and value
    }
    told: dict[str, str] = {}
    for file in _pip_files(variables) if files is None else files:
        told.update(_pip_file(file))
    for name in _PIP:
        value = variables.get(f"PIP_{name.replace('-', '_').upper()}")
        if value:
            told[name] = value
    for name, value in told.items():
        uv, separator = _PIP[name]
        if name == "no-index":
            value = "" if value.lower() in _FALSE else "1"
        if value and uv not in found:
            found[uv] = separator.join(value.split())
            if name == "extra-index-url":
                # pip takes the best version of all indexes; uv would look no further than the first that has any.
                found.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return found


def read_for_indexes(variables: Iterable[str]) -> list[str]:
    """Returns the names of variables of which `index_settings` makes its result."""
    of_pip = {
        "PIP_CONFIG_FILE",
        "XDG_CONFIG_DIRS",
        *(f"PIP_{name.replace('-', '_').upper()}" for name in _PIP),
    }
    return [name for name in variables if name in of_pip or re.fullmatch(_TRAVELS, name)]


def _pip_files(variables: Mapping[str, str]) -> list[Path]:
    """Returns pip's configuration files, those with the lowest precedence first."""
    given = variables.get("PIP_CONFIG_FILE")
    if given == os.devnull:
        return []
    home = Path(os.path.expanduser(variables.get("HOME") or "~"))
    config = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [each for each in (variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if each]
    files = [*(Path(each, "pip/pip.conf") for each in shared), Path("/etc/pip.conf")]
    files += [home / ".pip/pip.conf", config / "pip/pip.conf"]
    return [*files, Path(sys.prefix) / "pip.conf", *([Path(given)] if given else [])]


def _pip_file(path: Path) -> dict[str, str]:
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update({name: v for name, v in parser.items(section) if name in _PIP})
    return found
