"""A cloud in a box: EC2 and Mithril on this machine, whose instances are real hosts (`docs/cloud-in-a-box.md`).

`box.py` is what a test enters: machines, API servers and the client's laptop. Each API is a process of its own
(`serving.py`), which the box starts and controls (`served.py`); it rents out `machines.py`, slots of a cluster of
test hosts that start on an empty disk. `fault_injection.py` draws random faults from a seed, `orders.py` has those
that a test orders, and records the calls that arrived.

Only the control plane is simulated. What a machine does (boot script, sshd, disks, mounts, power cuts) is real.

    ec2/        moto's API, with what moto lacks
    mithril/    an API of our own, after Mithril's OpenAPI document

Imports `testing/hosts`, and no adapter. Start with `box.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.testing.cloud.box import CloudInABox

__all__ = ["CloudInABox"]


def __getattr__(name: str) -> object:
    # Imported on first use: the API servers import this package too, and need no `CloudInABox`.
    if name == "CloudInABox":
        from flowlite.testing.cloud.box import CloudInABox

        return CloudInABox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
