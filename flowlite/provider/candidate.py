"""A place where a task may run: one plan of one provider, beside the others that would do as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Self

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.json_value import JsonValue
from flowlite.provider.plan import Plan


@dataclass(frozen=True, slots=True)
class Candidate(JsonValue):
    """One of the places where a task may run. A task has them in a list, the preferred one first.

    Attributes:
        plan: What is launched there, with caps applied and the provider's settings frozen. `Plan.processes_per_node`
            may differ between the candidates of a task, and with it the world size.
        options: The values of `provider`, `gpu`, `region` and `spot` that the plan was made from, each a single one.
            With them, `config.replace(**options)` is the configuration that the adapter was asked with.
    """

    plan: Plan
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuilds the value from `to_json`."""
        return cls(Plan.from_json(data["plan"]), dict(data["options"]))
