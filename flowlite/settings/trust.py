"""Trust in a project's `flow.toml`: which settings need it, and which files were trusted.

A cloned project or an unpacked archive may contain a `flow.toml`, and a command that only reads must not run programs
that are named there. So the settings of `SENSITIVE` in a project's file have an effect only after the user has read it
and trusted it with `flow config trust`. Trust applies to one place and one content: that of the file, and that of the
OpenSSH configurations that it names. A link in its place has the place of the link, from which relative paths count.
`FLOW_HOME/config.toml` is the user's own and needs no trust.

Standard library only, since the supervisor reads settings too.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.settings import edited_files, ssh_config_words
from flowlite.settings.provider_settings import absolute

VARIABLE = "FLOW_TRUSTED_DIRS"
"""Variable with directories, separated as in PATH, in and below which all files are trusted; for CI."""

SENSITIVE: Mapping[str, Mapping[str, str]] = {
    "local": {},
    "ssh": {
        "config_file": "an OpenSSH configuration runs programs here (`Match exec`, `ProxyCommand`)",
        "identity_file": "the key decides in whose account your code and secrets arrive",
        "python": "this program is run on the hosts, also to list them",
        "node_dir": "programs are put there, and run from there as you",
    },
    "slurm": {
        "python": "this program is run on the nodes",
        "node_dir": "programs are put there, and run from there as you",
        "shared_dir": "programs are put there, and run from there as you",
        "ssh_config": "an OpenSSH configuration runs programs here (`Match exec`, `ProxyCommand`)",
        "sbatch": "any option of `sbatch` can be given, also those that hand over an environment",
        "image": "its programs run as you on the nodes, with your home directory and your secrets",
    },
    "aws": {
        "endpoint_url": "all that is asked of AWS, with your session's token, goes to this address",
        "ami": "this system gets your code and your secrets",
        "ami_parameter": "the system it names gets your code and your secrets",
        "instance_profile": "the nodes get its rights in your account",
        "security_group": "its rules decide who reaches the nodes",
        "ssh_from": "these networks reach the nodes' SSH server",
        "shared_config_file": "AWS's configuration runs programs here (`credential_process`)",
        "shared_credentials_file": "AWS's file of credentials runs programs here (`credential_process`)",
        "ssh_config": "an OpenSSH configuration runs programs here (`Match exec`, `ProxyCommand`)",
        "prices": "costs and caps are reckoned with them, so a low one has a cap allow more than it says",
        "cny_per_usd": "costs and caps are reckoned with it",
    },
    "mithril": {
        "api_url": "your API key is sent to this address",
        "api_key_file": "what is in this file is sent to the API as a key",
        "ssh_config": "an OpenSSH configuration runs programs here (`Match exec`, `ProxyCommand`)",
        "node_key": "it can put a key of your account where everybody in the project reads it",
    },
}
"""For each adapter, the settings that need trust, and why: they run a program, say where programs are run from, or
decide where code, secrets and credentials are sent, or what a cap of money allows. All settings of an adapter that is
not listed need trust."""

UNASKED = {"confirm": "with it, commands launch what costs money without asking you"}
"""The settings outside of tables that need trust where they are false."""

_UNKNOWN = "what it does is known to its adapter only"
_FILE = "trusted.json"
# Settings whose value names a file that can run programs; its content is trusted together with the file.
_CONFIGURATIONS = ("config_file", "ssh_config", "shared_config_file", "shared_credentials_file")
_LARGEST = 4 * 1024 * 1024


def needs_trust(provider: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the settings of a provider's table that need trust, each once, with the reason."""
    known = SENSITIVE.get(provider)
    if known is None:
        yield from ((key, _UNKNOWN) for key in table)
        return
    # At any depth, as in a pool and its hosts; a table in the first one, such as that of prices.
    found = {*table, *(key for key, _ in _values(table))}
    yield from ((key, reason) for key, reason in known.items() if key in found)


def is_trusted(
    path: Path, content: bytes | None, tables: Mapping[str, Any], home: Path, directories: str
) -> bool:
    """Whether a content of a project's file, as it was read, is trusted. Raises ConfigError.

    Args:
        tables: The providers' tables in it, by name.
        directories: The value of the variable `FLOW_TRUSTED_DIRS`.
    """
    place = _place_of(path)
    if any(_is_below(place, each) for each in directories.split(os.pathsep)):
        return True
    known = _read(home).get(place)
    # The files that a file names are read only if the file has been trusted before.
    return known is not None and known == digest(path, content, tables)


def was_trusted(path: Path, home: Path) -> bool:
    """Whether a project's file was ever trusted, with its current or an earlier content. Raises ConfigError."""
    return _place_of(path) in _read(home)


def trust(path: Path, content: bytes | None, tables: Mapping[str, Any], home: Path) -> None:
    """Trusts a content of a file, as it was read. Raises ConfigError."""
    whole = digest(path, content, tables)
    with edited_files.locked(home / _FILE):
        _write(home, {**_read(home), _place_of(path): whole})


def withdraw(path: Path, home: Path) -> bool:
    """Withdraws the trust in a file. Returns whether it was trusted. Raises ConfigError."""
    with edited_files.locked(home / _FILE):
        known = _read(home)
        found = known.pop(_place_of(path), None)
        if found is not None:
            _write(home, known)
    return found is not None


def digest(path: Path, content: bytes | None, tables: Mapping[str, Any]) -> str:
    """The SHA-256 of everything that is trusted with a project's file. Raises ConfigError."""
    own, *others = files_of(path, tables)
    contents = {own: content, **{each: content_of(each) for each in others}}
    parts = hashlib.sha256()
    for file, text in contents.items():
        what = "absent" if text is None else hashlib.sha256(text).hexdigest()
        parts.update(f"{file}\0{what}\n".encode("utf-8", "surrogateescape"))
    return parts.hexdigest()


def files_of(path: Path, tables: Mapping[str, Any]) -> list[str]:
    """The files that are trusted with a project's file: itself, and the OpenSSH configurations that it refers to.

    Files below ~/.ssh and /etc/ssh are left out, since `ssh` uses them anyway. Raises ConfigError.
    """
    place = _place_of(path)
    found = dict.fromkeys([place])
    for table in tables.values():
        for key, value in _values(table):
            if key in _CONFIGURATIONS and isinstance(value, str):
                _follow(absolute(value, os.path.dirname(place)), found, 0)
    return list(found)


# Trusted content


def _place_of(path: Path) -> str:
    """The real path of a file's directory, with the file's own name.

    A link is not followed: what it leads to may be trusted, and names other files where the link is.
    """
    directory, name = os.path.split(path.absolute())
    return os.path.join(os.path.realpath(directory), name)


def _follow(named: str, found: dict[str, None], depth: int) -> None:
    """Adds an OpenSSH configuration and the files that it includes."""
    path = os.path.realpath(named)
    own = (os.path.realpath(os.path.expanduser("~/.ssh")), "/etc/ssh")
    if path in found or any(_is_below(path, each) for each in own):
        return
    found[path] = None
    text = (content_of(path) or b"").decode("utf-8", "surrogateescape")
    for _, line in ssh_config_words.lines(text):
        keyword, rest = ssh_config_words.split(line) or ("", "")
        if keyword == "include" and depth < ssh_config_words.DEEPEST_INCLUDE:
            with suppress(ValueError):  # reported when the file is used
                for each in ssh_config_words.included(ssh_config_words.words(rest), named):
                    _follow(each, found, depth + 1)


def content_of(path: str | Path) -> bytes | None:
    """The content of a regular file of at most 4 MB; None if there is none. Raises ConfigError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(_LARGEST + 1) if stat.S_ISREG(found.st_mode) else None
            if content is None or len(content) > _LARGEST:
                raise ConfigError(f"{path}: no plain file of at most {_LARGEST >> 20} MB")
            return content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _is_below(path: str, directory: str) -> bool:
    if not os.path.isabs(directory):
        return False
    return path.startswith(os.path.realpath(directory).rstrip("/") + "/")


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields keys with their values at any depth, including those in tables and lists of tables."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _values(inner, name)
        return
    yield key, value
    if isinstance(value, list):
        for each in value:
            if isinstance(each, Mapping):
                yield from _values(each)


# The list of trusted files


def _read(home: Path) -> dict[str, str]:
    path = home / _FILE
    content = content_of(str(path))
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: cannot be understood; remove it, and trust your projects anew")
    return {str(name): str(value) for name, value in found.items()}


def _write(home: Path, known: Mapping[str, str]) -> None:
    edited_files.replace(home / _FILE, json.dumps(dict(known), indent=1).encode())
