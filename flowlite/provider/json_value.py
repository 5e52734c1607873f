"""Conversion of the contract's values to and from JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


class JsonValue:
    """Base class of the values that cross the contract: conversion of a flat dataclass to and from JSON."""

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuilds the value from `to_json`. Fields of a newer version are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        return cls(**values)
