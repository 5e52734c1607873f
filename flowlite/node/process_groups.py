"""torch's process groups, held until the worker ends.

When a DistributedDataParallel model is the last owner of a gloo process group (that is: it dies after
`destroy_process_group()`, as the local variables of a training function do), torch 2.13 joins the group's threads
without giving up the GIL, and a thread that still lets go of a tensor waits for the GIL: the worker hangs for ever. A
worker ends without taking anything down, so the groups may as well live until then. (The same flaw elsewhere in torch:
pytorch/pytorch#56297, #154976.)
"""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_held: list[Any] = []


def hold() -> None:
    """Let `destroy_process_group` do its work, but keep what it destroys. Without torch.distributed, do nothing."""
    distributed = sys.modules.get("torch.distributed")
    destroy = getattr(distributed, "destroy_process_group", None)
    if destroy is None or hasattr(destroy, "__wrapped__"):
        return

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        inside = sys.modules["torch.distributed.distributed_c10d"]
        world = getattr(inside, "_world", None)
        _held.extend(getattr(world, "pg_map", ()))
        destroy(group)

    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        vars(sys.modules[name])["destroy_process_group"] = destroy_process_group
