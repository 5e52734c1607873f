"""The contract between flowlite and its providers, and the registry of adapters.

An adapter is one class derived from `Provider` (`contract.py`), announced as an entry point of the group
`flowlite.providers`. It implements the six methods of the contract, and those of `optional.py` that its provider
allows. The values that cross the contract are plain frozen dataclasses (`plan.py`, `instance.py`, `findings.py`), so
that the supervisor can store them as JSON without importing the validation of specs; so is `candidate.py`, a plan
beside others that would do. `registry.py` finds adapters.

What an exception says decides what follows: `LaunchPending`, that something exists or may still come;
`CapacityUnavailable`, that nothing does. `list_instances` also lists machines that a launch may still create. An
adapter with `elastic` may bring fewer instances than `LaunchIntent.count`, but no fewer than `LaunchIntent.least`.

This package imports `errors` and `settings`; types of `connect`, `spec` and `state` are named only.
"""

from flowlite.provider.candidate import Candidate
from flowlite.provider.contract import Provider
from flowlite.provider.findings import Finding, Offer, VolumeInfo, VolumePlace, kept_size
from flowlite.provider.instance import PRICES, Instance, NodeSettings
from flowlite.provider.launch_pending import LaunchPending
from flowlite.provider.plan import REHEARSED, LaunchIntent, Plan, slots_of_gang
from flowlite.provider.registry import (
    adapter_class,
    adapters_problem,
    get_provider,
    provider_names,
    provider_of_task,
    settings_of_task,
)

__all__ = [
    "PRICES",
    "REHEARSED",
    "Candidate",
    "Finding",
    "Instance",
    "LaunchIntent",
    "LaunchPending",
    "NodeSettings",
    "Offer",
    "Plan",
    "Provider",
    "VolumeInfo",
    "VolumePlace",
    "adapter_class",
    "adapters_problem",
    "get_provider",
    "kept_size",
    "provider_names",
    "provider_of_task",
    "settings_of_task",
    "slots_of_gang",
]
