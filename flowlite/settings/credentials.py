"""Finds the API keys of providers: in a variable, in a file that only the user can read, or in the system's keyring.

A key that was read is masked in everything that this process prints (`output/redact.py`). Its `repr` does not show it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from flowlite.errors import PermissionRefused
from flowlite.node.quick_dataclass import dataclass
from flowlite.output import redact

SERVICE = "flowlite"
"""The service name of keys in the keyring. The user name there is the name of the provider."""

_LONGEST = 65536


@dataclass(frozen=True, slots=True)
class Key:
    """A key, and where it was found, for messages: the variable, the file or "the keyring"."""

    value: str = field(repr=False)
    origin: str

    def __str__(self) -> str:
        return f"a key from {self.origin}"


def find_key(
    provider: str,
    *,
    variable: str,
    file: str | os.PathLike[str] | None = None,
    usual: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Key | None:
    """The key of a provider; None if there is none.

    Args:
        provider: Its name, which is the user name in the keyring.
        variable: The variable that is read first.
        file: The file that is read next. It is refused if it does not exist or others can read it.
        usual: The file that is read if it exists and `file` is not given.
        environment: Variables; by default those of this process.

    Raises:
        PermissionRefused: What was found cannot be a key, or must not be used. The message never has the key.
    """
    variables = os.environ if environment is None else environment
    if given := variables.get(variable):
        return _key(given, variable)
    if file is None and usual is not None and Path(usual).exists():
        file = usual
    if file is not None:
        path = Path(file).expanduser()
        return _key(_read_private(path), str(path))
    found = _from_keyring(provider)
    return _key(found, "the keyring") if found else None


def _key(text: str, origin: str) -> Key:
    value = text.strip()
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        what = "is empty" if not value else "is not one word of plain characters"
        raise PermissionRefused(f"{origin}: what is there {what}, so it cannot be an API key")
    redact.keep_out(value)
    return Key(value, origin)


def _read_private(path: Path) -> str:
    """The content of a file that only its owner can read. Raises PermissionRefused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PermissionRefused(f"{path}: the API key cannot be read: {error.strerror}") from None
    # The checks use the open file, since the path may be replaced in between.
    try:
        _check_private(path, os.fstat(descriptor))
        content = os.read(descriptor, _LONGEST)
    finally:
        os.close(descriptor)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PermissionRefused(f"{path}: the API key is not text") from None


def _check_private(path: Path, found: os.stat_result) -> None:
    """Raises PermissionRefused for what is no plain file, or may be read by others."""
    if not stat.S_ISREG(found.st_mode):
        raise PermissionRefused(f"{path}: an API key must lie in a plain file")
    if found.st_uid not in (os.getuid(), 0):
        raise PermissionRefused(f"{path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionRefused(
            f"{path} holds an API key and has mode {mode:04o}, so others may read it: "
            f"`chmod 600 {path}`, and make a new key if somebody could have read this one"
        )


def _from_keyring(provider: str) -> str | None:
    try:
        import keyring
    except ImportError:
        return None
    try:
        found = keyring.get_password(SERVICE, provider)
    except Exception as error:
        # The backends of keyring raise many types: no backend, locked, no desktop.
        raise PermissionRefused(
            f"the keyring cannot be read: {type(error).__name__}: {error}; set a variable instead"
        ) from None
    return str(found) if found else None
