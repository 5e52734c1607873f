"""Adapts torch to workers, whether it is imported already or will be imported later.

torch can deadlock when a process group is destroyed right after a collective of objects. The group's destructor holds
the GIL and waits for the group's own thread, which needs the GIL to release a tensor (torch 2.13, gloo: half of such
runs on four ranks never ended). Groups that a function destroys are therefore kept until the process exits, which in a
worker happens without finalising the interpreter. `destroy_process_group` still shuts them down.

Ranks that connect to rank 0's store too early would wait longer than necessary, and a group that is made after another
was destroyed finds the store of that one (`torch_store.py`). A store in a file, which torch removes with the last
group, is removed when the last rank leaves.

Workers exit within milliseconds, and rank 0 holds the store of the whole gang. If rank 0 exits while others still
connect, their connections break. Workers with a process group therefore exit together.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_DISTRIBUTED = "torch.distributed"
_LEAVING = "flowlite/leaving"
_LEFT = "flowlite/left"
LEAVE_SECONDS = 30.0
"""How long a rank that still has its process group waits for the others before it exits."""
HOST_LEAVES_SECONDS = 600.0
"""The same for rank 0, whose store the others may still need."""
_kept: list[Any] = []
_last_gang: tuple[Any, int, int] | None = None


def settle() -> None:
    """Sets up torch in the worker. Call this before the user's function."""
    if not settle_loaded():
        sys.meta_path.insert(0, _WhenImported())


def settle_loaded() -> bool:
    """Sets up torch if its distributed part is imported already. Returns whether it is."""
    _set_threads()
    if _DISTRIBUTED not in sys.modules:
        return False
    _care_for(sys.modules[_DISTRIBUTED])
    return True


def _care_for(distributed: ModuleType) -> None:
    # Imported only with torch, since it needs `socket` and other modules that other functions do not.
    from . import torch_store

    keep_process_groups(distributed)
    if (rendezvous := sys.modules.get(f"{_DISTRIBUTED}.rendezvous")) is not None:
        torch_store.come_when_it_listens(rendezvous)


def _set_threads() -> None:
    # torch was imported in the fork server, and read the variable there with another value.
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))


def has_groups() -> bool:
    """Whether this process has, or has had, a process group."""
    inner = sys.modules.get(f"{_DISTRIBUTED}.distributed_c10d")
    if inner is None:
        return False
    with contextlib.suppress(Exception):
        return _last_gang is not None or bool(inner.is_initialized())
    return False


def leave_together(
    host_seconds: float = HOST_LEAVES_SECONDS, connected_seconds: float = LEAVE_SECONDS
) -> None:
    """Waits until every rank of the gang's process group has finished, if others may still need this rank.

    A rank that failed never arrives. In that case the gang is stopped, and this worker with it.

    Args:
        host_seconds: The longest that the host of the store waits.
        connected_seconds: The same for other ranks that still have their group.
    """
    inner = sys.modules.get(f"{_DISTRIBUTED}.distributed_c10d")
    if inner is None:
        return
    # Other versions of torch may keep the store elsewhere; and a store whose host has exited raises an error.
    with contextlib.suppress(Exception):
        connected = inner.is_initialized()
        gang = _gang(inner) if connected else _last_gang
        if gang is None:
            return
        store, rank, ranks = gang
        here = store.add(_LEAVING, 1)
        seconds = host_seconds if rank == 0 else connected_seconds if connected else 0.0
        last = time.monotonic() + seconds
        pause = 0.001
        while here < ranks and time.monotonic() < last:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            here = store.add(_LEAVING, 0)
        _remove_file(store, ranks)


def _remove_file(store: Any, ranks: int) -> None:
    """Removes the file of a store when no rank looks at it any more: the next gang would take its ranks for its own."""
    from . import torch_store

    file = torch_store.file_of(store)
    if file is not None and store.add(_LEFT, 1) == ranks:
        os.unlink(file)


def _gang(inner: ModuleType) -> tuple[Any, int, int]:
    return inner._get_default_store(), inner.get_rank(), inner.get_world_size()


def keep_process_groups(distributed: ModuleType) -> None:
    """Makes `destroy_process_group` keep groups, so that their destructors do not run before the process exits."""
    from . import torch_store

    inner = sys.modules.get(f"{_DISTRIBUTED}.distributed_c10d")
    destroy = getattr(distributed, "destroy_process_group", None)
    if inner is None or destroy is None or hasattr(destroy, "__wrapped__"):
        return

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **options: Any) -> Any:
        global _last_gang
        # Other versions of torch may keep groups elsewhere, and may not need this.
        with contextlib.suppress(AttributeError, ValueError, RuntimeError):
            _kept.extend(inner._world.pg_map)
            _last_gang = _gang(inner)
        done = destroy(*arguments, **options)
        if not inner.is_initialized():
            torch_store.note_end()
        return done

    for module in (distributed, inner):
        setattr(module, "destroy_process_group", destroy_process_group)  # noqa: B010


class _WhenImported:
    """An import hook that waits for `torch.distributed` and then removes itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the module in the usual way, and sets it up once it is loaded."""
        if name != _DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_care(module: ModuleType) -> None:
            load(module)
            _care_for(module)

        spec.loader.exec_module = load_and_care  # type: ignore[method-assign]
        return spec
