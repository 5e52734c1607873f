"""The API's formats of ids, money and times."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from datetime import UTC, datetime

_LETTERS = string.ascii_letters + string.digits
_MONEY = re.compile(r"\$?(\d{1,9})(?:\.(\d{1,2}))?")


def new_fid(prefix: str) -> str:
    """A new random id. Ids do not sort by creation time."""
    return f"{prefix}_{''.join(secrets.choice(_LETTERS) for _ in range(16))}"


def fixed_fid(prefix: str, *words: str) -> str:
    """The same id for the same words, for resources that exist from the start."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return f"{prefix}_{''.join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:16])}"


def money(cents: int) -> str:
    """Cents in the API's format of dollars."""
    return f"${cents // 100}.{cents % 100:02d}"


def cents_of(text: str) -> int:
    """The inverse of `money`. Raises ValueError."""
    found = _MONEY.fullmatch(text)
    if found is None:
        raise ValueError(f"not a price: {text!r}")
    return int(found[1]) * 100 + int((found[2] or "0").ljust(2, "0"))


def stamp(seconds: float) -> str:
    """A Unix time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def seconds_of(text: str) -> float:
    """The inverse of `stamp`. A time without a zone is in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
