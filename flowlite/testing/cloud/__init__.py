"""A cloud in a box: EC2 and Mithril on this machine, whose instances are real hosts (`docs/cloud-in-a-box.md`)."""

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
