"""Changes the hosts of a pool in `FLOW_HOME/config.toml` and leaves everything else in the file unchanged."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.settings import edited_files

_HEADER = re.compile(r"\s*\[")
_HOSTS = re.compile(r"""\s*(?:hosts|"hosts"|'hosts')\s*=""")


def change_hosts(
    path: Path,
    pool: str,
    change: Callable[[list[Any]], list[Any]],
    check: Callable[[], object] = lambda: None,
) -> None:
    """Changes the list of hosts of one pool, which is created if missing.

    Args:
        check: Reads the changed file. If it raises, the file is restored.

    Raises:
        ConfigError: The file cannot be read or written, or has a layout that cannot be edited automatically.
    """
    with edited_files.locked(path):
        text = _read(path)
        edited_files.replace(path, _changed(path, text or "", pool, change).encode())
        try:
            check()
        except BaseException:
            if text is None:
                path.unlink()
            else:
                edited_files.replace(path, text.encode())
            raise


def _changed(path: Path, text: str, pool: str, change: Callable[[list[Any]], list[Any]]) -> str:
    before = _parse(path, text)
    pools = before.get("ssh", {}).get("pools", {})
    hosts = change(list(pools.get(pool, {}).get("hosts", [])))
    after = _with_hosts(text, pool, _array(hosts), exists=pool in pools)
    wanted = _merged(before, pool, hosts)
    try:
        same = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            f"{path}: [ssh.pools.{pool}] is written in a way that cannot be changed here; "
            f"edit it by hand so that it says: hosts = {_array(hosts)}"
        )
    return after


def _read(path: Path) -> str | None:
    """The text of the file; None if there is none."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _merged(before: Mapping[str, Any], pool: str, hosts: list[Any]) -> dict[str, Any]:
    ssh = dict(before.get("ssh", {}))
    pools = dict(ssh.get("pools", {}))
    pools[pool] = {**pools.get(pool, {}), "hosts": hosts}
    return {**before, "ssh": {**ssh, "pools": pools}}


def _with_hosts(text: str, pool: str, array: str, *, exists: bool) -> str:
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"""\s*\[\s*ssh\s*\.\s*pools\s*\.\s*["']?{re.escape(pool)}["']?\s*\]""")
    at = next((i for i, line in enumerate(lines) if header.match(line)), None)
    if at is None:
        if exists:
            return text
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[ssh.pools.{_key(pool)}]\nhosts = {array}\n"
    end = next((i for i in range(at + 1, len(lines)) if _HEADER.match(lines[i])), len(lines))
    key = next((i for i in range(at + 1, end) if _HOSTS.match(lines[i])), None)
    if key is None:
        return "".join([*lines[: at + 1], f"hosts = {array}\n", *lines[at + 1 :]])
    rest = "".join(lines[key:])
    start = rest.index("=") + 1
    length = _array_end(rest, start)
    return "".join(lines[:key]) + f"{rest[:start]} {array}{rest[length:]}"


def _array_end(text: str, start: int) -> int:
    """The end of the array that begins after `start`; strings and comments in it are skipped."""
    depth, i = 0, start
    while i < len(text):
        char = text[i]
        if char in "\"'":
            i += 1
            while i < len(text) and text[i] != char:
                i += 2 if text[i] == "\\" and char == '"' else 1
        elif char == "#":
            i = text.find("\n", i)
            if i < 0:
                return len(text)
        elif char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return len(text)


def _array(hosts: list[Any]) -> str:
    if not hosts:
        return "[]"
    return "[\n" + "".join(f"  {_value(host)},\n" for host in hosts) + "]"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)
