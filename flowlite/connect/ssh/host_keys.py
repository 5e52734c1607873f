"""Host keys: always compared, and accepted only on purpose.

Known keys come from `FLOW_HOME/known_hosts`, which `flow hosts trust` writes, and from the files that OpenSSH uses,
which are only read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.connect.ssh.config import matches_pattern
from flowlite.connect.ssh.kept_values import KeptValues, Sources, read_once
from flowlite.errors import ConfigError, HostKeyError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings import edited_files, flow_home

if TYPE_CHECKING:
    from flowlite.connect.ssh.targets import SshTarget

OWN_FILE = "known_hosts"
_REVOKED = "@revoked"
# How OpenSSH's binary lists of revoked keys begin.
_KRL = b"SSHKRL\n\0"
_KEYGEN_SECONDS = 10.0
# Names with wildcards, negated ones, and hashed ones.
_SPECIAL = re.compile(r"[*?!|]")


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public key of a host: its kind ("ssh-ed25519") and its bytes."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As OpenSSH prints it: `SHA256:…`."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"

    @property
    def line(self) -> str:
        """Kind and key as they appear in a `known_hosts` file."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A known key and the file that lists it."""

    key: HostKey
    file: str
    revoked: bool = False


def own_file() -> Path:
    """The file of keys that were accepted with `flow hosts trust`."""
    return flow_home.home() / OWN_FILE


def known(target: SshTarget) -> list[KnownKey]:
    """All known keys of a host, those accepted with `flow hosts trust` first."""
    files = [str(own_file()), *target.known_hosts]
    return [found for file in files for found in _in_file(file, target.host_key_name)]


def check(target: SshTarget, key: HostKey) -> None:
    """Compares the key that a host has presented with the known ones.

    Raises:
        HostKeyError: The key is unknown, differs or is revoked. Nothing may be sent to that host.
    """
    found = known(target)
    refuse_revoked(target, key, found)
    valid = [entry for entry in found if not entry.revoked]
    if any(entry.key == key for entry in valid):
        return
    what = f"its {_plain(key.kind)} key has the fingerprint {key.fingerprint}"
    trust = f"`flow hosts trust {target.name}`"
    if not valid:
        raise HostKeyError(
            f"host {target.label} is not known: {what}. Compare it with what the host's owner says, "
            f"then accept it with {trust}",
            host=target.name,
            fingerprint=key.fingerprint,
        )
    before = ", ".join(dict.fromkeys(f"{e.key.fingerprint} ({e.file})" for e in valid))
    raise HostKeyError(
        f"host {target.label} shows another key than before: {what}, known is {before}. Either it was set up "
        f"anew, or somebody stands in between; nothing was sent. If its owner confirms the new key: {trust}",
        host=target.name,
        fingerprint=key.fingerprint,
        changed=True,
    )


def refuse_revoked(target: SshTarget, key: HostKey, found: Sequence[KnownKey]) -> None:
    """Raises HostKeyError if the key is listed as revoked, and ConfigError if a list of those cannot be used."""
    lists = [entry.file for entry in found if entry.revoked and entry.key == key]
    lists += [file for file in target.revoked_keys if _revokes(file, key)]
    if lists:
        raise HostKeyError(
            f"host {target.label}: its key {key.fingerprint} is marked as revoked in {lists[0]}; do not use that "
            "host. If it is yours, give it another key",
            host=target.name,
            fingerprint=key.fingerprint,
            changed=True,
            revoked=True,
        )


def trust(target: SshTarget, key: HostKey) -> Path:
    """Accepts a key for a host from now on, in place of those accepted before. Returns the file written.

    Raises:
        HostKeyError: The key is revoked.
    """
    refuse_revoked(target, key, known(target))
    path = flow_home.ensure_home() / OWN_FILE
    with edited_files.locked(path):
        kept = []
        for line in _text_lines(str(path)):
            entry = _parse(line)
            if entry is None or not _names(entry[1], target.host_key_name) or entry[0] == _REVOKED:
                kept.append(f"{line}\n")
        text = "".join([*kept, f"{target.host_key_name} {key.line}\n"])
        edited_files.replace(path, text.encode("utf-8", "surrogateescape"))
    return path


def pinned_lines(target: SshTarget) -> list[str]:
    """Lines for a `known_hosts` file that holds only the known keys of this host."""
    found = known(target)
    revoked = {entry.key for entry in found if entry.revoked}
    keys = dict.fromkeys(entry.key for entry in found if entry.key not in revoked)
    return [f"{target.host_key_name} {key.line}" for key in keys]


# Files


def _revokes(file: str, key: HostKey) -> bool:
    """Whether a file that RevokedHostKeys names has a key: a list of public keys, or OpenSSH's binary form (KRL).

    As for OpenSSH, no host can be reached with a file that cannot be read.
    """
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"RevokedHostKeys {file}: cannot be read: {error.strerror}") from None
    if content.startswith(_KRL):
        return _is_in_krl(file, key)
    blob = base64.b64encode(key.blob)
    return any(blob in line.split()[:3] for line in content.splitlines() if line[:1] != b"#")


def _is_in_krl(file: str, key: HostKey) -> bool:
    import subprocess
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".pub") as shown:
        shown.write(f"{key.line}\n".encode())
        shown.flush()
        try:
            done = subprocess.run(
                ["ssh-keygen", "-Q", "-f", file, shown.name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_KEYGEN_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"RevokedHostKeys {file}: it needs ssh-keygen to be read: {error}"
            ) from None
    if done.returncode == 0:
        return False
    if b"REVOKED" in done.stdout:
        return True
    said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    raise ConfigError(f"RevokedHostKeys {file}: cannot be read: {said}")


@dataclass(slots=True)
class _Index:
    """The keys of a file, in the order of its lines: those of plain names, and those of patterns and hashed names."""

    plain: dict[str, list[tuple[int, KnownKey]]] = field(default_factory=dict)
    others: list[tuple[int, str, KnownKey]] = field(default_factory=list)

    def of(self, name: str) -> list[KnownKey]:
        """The keys of a host."""
        found = list(self.plain.get(name, ()))
        found += [(line, key) for line, names, key in self.others if _names(names, name)]
        return [key for _, key in sorted(found, key=lambda each: each[0])]


_indexes: KeptValues[_Index] = KeptValues()


def _in_file(file: str, name: str) -> list[KnownKey]:
    index = _indexes.find(file) or read_once(lambda: _indexes.find(file) or _read_index(file))
    return index.of(name)


def _read_index(file: str) -> _Index:
    sources = Sources()
    sources.note(file)
    return _indexes.keep(file, _index(file), sources)


def _index(file: str) -> _Index:
    index = _Index()
    for number, line in enumerate(_text_lines(file)):
        entry = _parse(line)
        if entry is None:
            continue
        marker, names, key = entry
        # A line about a certificate authority does not apply to a plain host key.
        if marker not in ("", _REVOKED):
            continue
        known = KnownKey(key, file, marker == _REVOKED)
        if _SPECIAL.search(names):
            index.others.append((number, names, known))
            continue
        for name in set(names.lower().split(",")):
            index.plain.setdefault(name, []).append((number, known))
    return index


def _text_lines(file: str) -> Iterator[str]:
    try:
        text = Path(file).read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    yield from text.splitlines()


def _parse(line: str) -> tuple[str, str, HostKey] | None:
    """Marker, names and key of a line; None for any other line."""
    words = line.split()
    marker = ""
    if words and words[0].startswith("@"):
        marker = words.pop(0)
    if len(words) < 3 or words[0].startswith("#"):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return marker, words[0], HostKey(words[1], blob)


def _names(names: str, name: str) -> bool:
    """Whether the first field of a line names a host."""
    found = False
    for pattern in names.split(","):
        if pattern.startswith("|1|"):
            found |= _hashed(pattern, name)
        elif pattern.startswith("!"):
            if matches_pattern(name, pattern[1:].lower()):
                return False
        elif matches_pattern(name, pattern.lower()):
            found = True
    return found


def _hashed(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except (binascii.Error, ValueError):
        return False
    mine = hmac.new(salt, name.encode("utf-8", "surrogateescape"), hashlib.sha1).digest()
    return hmac.compare_digest(mine, digest)


def _plain(kind: str) -> str:
    """`ED25519` for `ssh-ed25519`."""
    name = kind.removeprefix("ssh-").removeprefix("ecdsa-sha2-")
    return name.upper() if not name.startswith("nistp") else "ECDSA"
