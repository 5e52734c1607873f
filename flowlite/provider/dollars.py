"""Amounts of money as text."""

from __future__ import annotations


def dollars(amount: float) -> str:
    """Returns `$1.25`, with more digits for fractions of a cent."""
    return f"${amount:.4f}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def exact(amount: float) -> str:
    """Returns `$1.25` or `$1.2505`, so that a price and a cap that differ never look equal."""
    cents = f"{amount:,.2f}"
    digits = f"{amount:,.6f}".rstrip("0")
    return f"${max(cents, digits, key=len)}"
