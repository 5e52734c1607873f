"""IAM policies: whether the box's user may make a call, decided as IAM does.

The part of IAM that a minimal policy needs: Allow and Deny, Action and NotAction, Resource and NotResource with
wildcards, and the usual condition operators on tags and regions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

Context = Mapping[str, str | list[str]]


@dataclass(frozen=True)
class Need:
    """A permission that a call requires: an action on a resource, with the condition keys that are known."""

    action: str
    resource: str = "*"
    context: Context = field(default_factory=dict)


class Policy:
    """The policy of the box's user. Without a policy, everything is allowed."""

    def __init__(self) -> None:
        self._statements: list[dict[str, Any]] | None = None

    def set(self, document: Mapping[str, Any] | None) -> None:
        """Replaces the policy."""
        if document is None:
            self._statements = None
            return
        statements = document["Statement"]
        self._statements = [statements] if isinstance(statements, dict) else list(statements)

    def refused(self, needs: Iterable[Need]) -> Need | None:
        """The first required permission that is not granted."""
        if self._statements is None:
            return None
        return next((need for need in needs if not self._allows(need)), None)

    def _allows(self, need: Need) -> bool:
        statements = [s for s in self._statements or [] if _applies(s, need)]
        if any(s["Effect"] == "Deny" for s in statements):
            return False
        return any(s["Effect"] == "Allow" for s in statements)


def _applies(statement: Mapping[str, Any], need: Need) -> bool:
    if not _listed(statement, "Action", need.action.lower(), lower=True):
        return False
    if not _listed(statement, "Resource", need.resource):
        return False
    conditions = statement.get("Condition", {})
    return all(
        _holds(operator, key, _list(values), need.context)
        for operator, pairs in conditions.items()
        for key, values in pairs.items()
    )


def _listed(statement: Mapping[str, Any], key: str, value: str, *, lower: bool = False) -> bool:
    listed = key in statement
    patterns = _list(statement.get(key, statement.get(f"Not{key}", [])))
    hit = any(_like(p.lower() if lower else p, value) for p in patterns)
    return hit if listed else not hit


def _holds(operator: str, key: str, wanted: list[str], context: Context) -> bool:
    known = {k.lower(): v for k, v in context.items()}.get(key.lower())
    quantifier, _, plain = operator.rpartition(":")
    optional = plain.endswith("IfExists")
    plain = plain.removesuffix("IfExists")
    if plain == "Null":
        return (known is None) == (wanted[0].lower() == "true")
    if known is None:
        return optional or quantifier == "ForAllValues" or plain.startswith("StringNot")
    test = _TESTS[plain]
    values = _list(known)
    if quantifier == "ForAllValues":
        return all(any(test(w, v) for w in wanted) for v in values)
    if plain.startswith("StringNot"):
        return all(test(w, v) for w in wanted for v in values)
    return any(test(w, v) for w in wanted for v in values)


_TESTS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda wanted, value: wanted == value,
    "StringNotEquals": lambda wanted, value: wanted != value,
    "StringEqualsIgnoreCase": lambda wanted, value: wanted.lower() == value.lower(),
    "StringLike": lambda wanted, value: _like(wanted, value),
    "StringNotLike": lambda wanted, value: not _like(wanted, value),
    "ArnLike": lambda wanted, value: _like(wanted, value),
    "ArnEquals": lambda wanted, value: _like(wanted, value),
    "Bool": lambda wanted, value: wanted.lower() == value.lower(),
    "NumericLessThanEquals": lambda wanted, value: float(value) <= float(wanted),
}


def _like(pattern: str, value: str) -> bool:
    # fnmatch knows character sets, which IAM does not.
    return fnmatchcase(value, re.sub(r"\[", "[[]", pattern))


def _list(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]
