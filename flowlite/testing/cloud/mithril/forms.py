"""How the API writes things: ids, money, time."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from datetime import UTC, datetime

_LETTERS = string.ascii_letters + string.digits
_MONEY = re.compile(r"\$?(\d{1,9})(?:\.(\d{1,2}))?")


def new_fid(prefix: str) -> str:
    """An id nobody has: their order says nothing about the order in which things were made."""
    return f"{prefix}_{''.join(secrets.choice(_LETTERS) for _ in range(16))}"


def fixed_fid(prefix: str, *words: str) -> str:
    """The same id for the same words, for what is there from the beginning."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return f"{prefix}_{''.join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:16])}"


def money(cents: int) -> str:
    """Cents as the API writes dollars."""
    return f"${cents // 100}.{cents % 100:02d}"


def cents_of(text: str) -> int:
    """The opposite of `money`. Raises ValueError."""
    found = _MONEY.fullmatch(text)
    if found is None:
        raise ValueError(f"not a price: {text!r}")
    return int(found[1]) * 100 + int((found[2] or "0").ljust(2, "0"))


def stamp(seconds: float) -> str:
    """Unix time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def seconds_of(text: str) -> float:
    """The opposite of `stamp`; a time without a zone is in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
