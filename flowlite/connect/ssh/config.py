"""OpenSSH client configuration: what `~/.ssh/config` says about one host.

`Host`, `Match` and `Include` work as in ssh_config(5). Only keywords that decide how a host is reached are kept.

Read here rather than by `ssh -G`, which takes 5 ms for each host (this takes 0.02 ms), writes the paths of known hosts
without quotes, and would be needed on machines that log in without it. `tests/connect/test_ssh_config.py` holds both
side by side.
"""

from __future__ import annotations

import heapq
import os
import pwd
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cache, lru_cache
from pathlib import Path

from flowlite.connect.ssh.kept_values import Sources, read_once
from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import addresses
from flowlite.settings import ssh_config_words

SYSTEM_FILE = "/etc/ssh/ssh_config"
_EXEC_SECONDS = 10.0

# The keywords that are read, and whether each occurrence adds a value.
_KEYWORDS = {
    "hostname": False,
    "port": False,
    "user": False,
    "identityfile": True,
    "certificatefile": True,
    "identitiesonly": False,
    "identityagent": False,
    "addressfamily": False,
    "bindaddress": False,
    "proxyjump": False,
    "proxycommand": False,
    "hostkeyalias": False,
    "userknownhostsfile": False,
    "globalknownhostsfile": False,
    "revokedhostkeys": False,
}
# Keywords whose value is the rest of the line, not a list of words.
_WHOLE_LINE = {"proxycommand"}
_HEADS = {"host", "match"}
_MANY_WORDS = {"userknownhostsfile", "globalknownhostsfile", "revokedhostkeys"}
_NO_ARGUMENT = {"all", "canonical", "final"}
_ARGUMENT = {"host", "originalhost", "user", "localuser", "localnetwork", "exec"}

# The options of one host: the words of each keyword, by its name in lower case.
Options = dict[str, list[str]]
# Line number, keyword, the rest of the line unchanged, and its words.
_Line = tuple[int, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Block:
    """A Host or Match line and the lines up to the next one.

    Attributes:
        head: The first line; None for what precedes the first block of a file.
        names: The hosts of a Host line without patterns.
        includes: Whether it includes files. These are looked at for every host.
        lines: The lines after the first.
    """

    head: _Line | None
    names: frozenset[str] | None
    includes: bool
    lines: tuple[_Line, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """The blocks of a file.

    A configuration may have a thousand blocks of one host each, and is looked up for each of these hosts.

    Attributes:
        named: For each name, where the blocks are that only this name decides about.
        others: Where the blocks are that have to be looked at for every host.
    """

    blocks: tuple[_Block, ...]
    named: dict[str, list[int]]
    others: list[int]

    def blocks_for(self, host: str) -> list[_Block]:
        """The blocks that may say something about a host, in order."""
        places = heapq.merge(self.others, self.named.get(host, ()))
        return [self.blocks[place] for place in places]


@dataclass(slots=True)
class _Reading:
    """One pass over the files for one host."""

    original: str
    host: str
    user: str | None
    final: bool
    sources: Sources
    options: Options = field(default_factory=dict)
    wants_final: bool = False

    def hostname(self) -> str:
        """The host name, as far as it is known at this point of the file."""
        given = self.options.get("hostname")
        return expand(given[0], {"h": self.host}) if given else self.host

    def login(self) -> str:
        """The user to log in as, as far as it is known at this point of the file."""
        return self.user or next(iter(self.options.get("user", ())), local_user())


def lookup(
    host: str, files: Sequence[Path], *, user: str | None = None, sources: Sources | None = None
) -> Options:
    """What the files say about a host; the first value of each keyword counts.

    Args:
        host: The name as the user gave it.
        files: Configuration files in order; missing ones are skipped.
        user: The user to log in as, if given; `Match user` compares it.
        sources: Is told of the files that were read, and whether the answer depends on anything else.

    Raises:
        ConfigError: A file cannot be read or parsed; the message names the file and line.
    """
    sources = Sources() if sources is None else sources
    first = _pass(_Reading(host, host, user, False, sources), files)
    if not first.wants_final:
        return first.options
    # Like OpenSSH: a second pass with the final host name, which keeps the values of the first pass.
    name = first.hostname()
    first.options["hostname"] = [name.replace("%", "%%")]
    again = _Reading(host, name, user, True, sources, first.options)
    return _pass(again, files).options


def default_files(config_file: str | Path | None) -> list[Path]:
    """The files that OpenSSH would read: the given one, or the user's and then the system's."""
    if config_file:
        return [Path(os.path.expanduser(config_file))]
    own = os.path.expanduser("~/.ssh/config")
    # A user id without an account, as a container may have, has no home directory: the path begins with `~` still.
    return [*([Path(own)] if os.path.isabs(own) else []), Path(SYSTEM_FILE)]


def _pass(reading: _Reading, files: Sequence[Path]) -> _Reading:
    for path in files:
        _read(path, reading, True, 0)
    return reading


def _read(path: Path, reading: _Reading, active: bool, depth: int) -> None:
    """Reads one file. `active` says whether the enclosing block applies to the host."""
    outer = active
    reading.sources.note(path)
    for block in _blocks(path, reading.host):
        if block.names is not None:
            active = outer and reading.host in block.names
        elif block.head is not None:
            number, keyword, _, words = block.head
            if keyword == "host":
                active = outer and _any_pattern(words, reading.host)
            else:
                active = _matches(words, reading, path, number) and outer
        if active or block.includes:
            _read_block(path, block, reading, active, depth)


def _read_block(path: Path, block: _Block, reading: _Reading, active: bool, depth: int) -> None:
    for number, keyword, rest, words in block.lines:
        if keyword == "include":
            if depth >= ssh_config_words.DEEPEST_INCLUDE:
                raise _wrong(path, number, "too many files include each other")
            for place in ssh_config_words.watched(words, str(path)):
                reading.sources.note(place) if place else reading.sources.depend()
            for included in ssh_config_words.included(words, str(path)):
                _read(Path(included), reading, active, depth + 1)
        elif active and keyword in _KEYWORDS:
            _note(reading.options, keyword, [rest] if keyword in _WHOLE_LINE else list(words))


def _note(options: Options, keyword: str, words: list[str]) -> None:
    if _KEYWORDS[keyword]:
        held = options.setdefault(keyword, [])
        if words[0] not in held:
            held.append(words[0])
        return
    # The first of ProxyJump and ProxyCommand excludes the other, except for a ProxyJump of "none".
    if keyword == "proxyjump" and "proxycommand" in options:
        return
    if keyword == "proxycommand" and options.get("proxyjump", ["none"])[0].lower() != "none":
        return
    options.setdefault(keyword, words if keyword in _MANY_WORDS else words[:1])


def _blocks(path: Path, host: str) -> Sequence[_Block]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return read_once(lambda: _parsed(text, path)).blocks_for(host)


@lru_cache(maxsize=16)
def _parsed(text: str, path: Path) -> _File:
    """The blocks of a file. Cached, since the configuration is looked up for each host again."""
    found: list[_Block] = []
    head: _Line | None = None
    block: list[_Line] = []
    for line in _lines(text, path):
        if line[1] in _HEADS:
            found.append(_block(head, block))
            head, block = line, []
        else:
            block.append(line)
    found.append(_block(head, block))
    named: dict[str, list[int]] = {}
    others = []
    for place, each in enumerate(found):
        if each.names is None or each.includes:
            others.append(place)
            continue
        for name in each.names:
            named.setdefault(name, []).append(place)
    return _File(tuple(found), named, others)


def _block(head: _Line | None, lines: Sequence[_Line]) -> _Block:
    names = None
    if head is not None and head[1] == "host" and all(_is_name(word) for word in head[3]):
        names = frozenset(head[3])
    return _Block(head, names, any(line[1] == "include" for line in lines), tuple(lines))


def _lines(text: str, path: Path) -> Iterator[_Line]:
    for number, line in ssh_config_words.lines(text):
        keyword, rest = _split(line, path, number)
        words = tuple(_words(rest, path, number))
        if keyword in _WHOLE_LINE or words:
            yield number, keyword, rest, words
        elif keyword in _KEYWORDS or keyword in _HEADS or keyword == "include":
            raise _wrong(path, number, f"{keyword} has no value")


def _split(line: str, path: Path, number: int) -> tuple[str, str]:
    found = ssh_config_words.split(line)
    if found is None:
        raise _wrong(path, number, f"not a keyword and its value: {line!r}")
    return found


def _words(rest: str, path: Path, number: int) -> list[str]:
    try:
        return ssh_config_words.words(rest)
    except ValueError as error:
        raise _wrong(path, number, str(error)) from None


def _wrong(path: Path, number: int, what: str) -> ConfigError:
    return ConfigError(f"{path}, line {number}: {what}")


# Patterns


# A word of a Host line that is no pattern.
_is_name = re.compile(r"(?!!)[^*?]*").fullmatch


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in text)
    return re.compile("".join(parts), re.DOTALL)


def matches_pattern(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern, in which `*` stands for any text and `?` for one character."""
    return _pattern(pattern).fullmatch(text) is not None


def _any_pattern(patterns: Sequence[str], text: str) -> bool:
    """Whether a pattern matches and no negated pattern does."""
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches_pattern(text, pattern[1:]):
                return False
        elif pattern == text or matches_pattern(text, pattern):
            found = True
    return found


def _matches(words: Sequence[str], reading: _Reading, path: Path, number: int) -> bool:
    """Whether all criteria of a Match line hold. Evaluation stops at the first that does not."""
    tests: dict[str, Callable[[str], bool]] = {
        "host": lambda text: _any_pattern(text.lower().split(","), reading.hostname().lower()),
        "originalhost": lambda text: _any_pattern(
            text.lower().split(","), reading.original.lower()
        ),
        "user": lambda text: _any_pattern(text.split(","), reading.login()),
        "localuser": lambda text: _any_pattern(text.split(","), local_user()),
        "localnetwork": lambda text: _is_in_networks(text, reading, path, number),
        "exec": lambda text: _succeeds(text, reading),
    }
    holds = True
    rest = _criteria(words)
    while rest:
        word = rest.pop(0)
        negated, name = word.startswith("!"), word.removeprefix("!").lower()
        if name in _NO_ARGUMENT:
            # OpenSSH makes the second pass only for `final`; without canonical names there is no other reason.
            reading.wants_final |= name == "final"
            found = name == "all" or reading.final
        elif name in _ARGUMENT and rest:
            argument = rest.pop(0)
            found = holds and tests[name](argument)
        elif name in _ARGUMENT:
            raise _wrong(path, number, f"Match {name} has no value")
        else:
            raise _wrong(
                path,
                number,
                f"Match {name} is not known here; use Host, or move it to another file",
            )
        holds &= found != negated
    return holds


def _criteria(words: Sequence[str]) -> list[str]:
    """Splits criteria into names and values: `host=a` is `host a`."""
    found: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.removeprefix("!").lower() in _ARGUMENT:
            found += [name, value] if value else [name]
        else:
            found.append(word)
    return found


def _is_in_networks(text: str, reading: _Reading, path: Path, number: int) -> bool:
    """Whether an address of this machine is in one of these networks: `192.0.2.0/24,2001:db8::/32`."""
    import ipaddress

    # A laptop may move.
    reading.sources.depend()
    try:
        networks = [ipaddress.ip_network(each) for each in text.split(",")]
    except ValueError as error:
        raise _wrong(path, number, f"Match localnetwork: {error}") from None
    own = [ipaddress.ip_address(each) for each in addresses.own_addresses()]
    return any(address in network for address in own for network in networks)


def _succeeds(command: str, reading: _Reading) -> bool:
    # What a command answers may change at any time.
    reading.sources.depend()
    port = next(iter(reading.options.get("port", ())), "22")
    expanded = expand(command, tokens(reading.original, reading.hostname(), reading.login(), port))
    try:
        done = subprocess.run(
            [os.environ.get("SHELL") or "/bin/sh", "-c", expanded],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_EXEC_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


# Tokens


def local_user() -> str:
    """The user of this process, by user id, as OpenSSH finds it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER") or str(os.getuid())


def tokens(original: str, hostname: str, user: str, port: str) -> dict[str, str]:
    """The values of the letters after a percent sign."""
    local = socket.gethostname()
    return {
        "d": os.path.expanduser("~"),
        "h": hostname,
        "i": str(os.getuid()),
        "l": local,
        "L": local.partition(".")[0],
        "n": original,
        "k": original,
        "p": port,
        "r": user,
        "u": local_user(),
    }


def expand(text: str, values: dict[str, str]) -> str:
    """Replaces `%h` and the like. Unknown letters are kept."""

    def replace(found: re.Match[str]) -> str:
        letter = found[1]
        return "%" if letter == "%" else values.get(letter, found[0])

    return re.sub("%(.)", replace, text)


def expand_path(text: str, values: dict[str, str]) -> str:
    """A path with its tokens, variables (`${HOME}`) and `~` replaced."""
    named = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), text)
    return os.path.expanduser(expand(named, values))
