"""Repeats, in a forked worker, what modules computed from their process when the fork server imported them.

Examples are the working directory, the key of multiprocessing, the start time of logging, random seeds, and wandb's
directories. Without this, a worker would have the values of the fork server.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

READ_DIRECTORY = frozenset(
    {
        "multiprocess.process",
        "multiprocessing.process",
        "rich",
        "torch._dynamo.config",
        "torch._inductor.config",
        "transformers.utils.auto_docstring",
        "wandb.old.core",
    }
)
"""The modules that read the working directory when they are imported, and that `renew` repairs."""
READ_RANK = frozenset(
    {
        "lightning.fabric.utilities.rank_zero",
        "lightning_fabric.utilities.rank_zero",
        "torchmetrics.utilities.prints",
    }
)
"""The modules that read the rank when they are imported, and that `renew` repairs."""
# What they took for the rank in the fork server, which has one where srun started the agent.
_first_ranks: dict[str, Any] = {}
# The temporary directories that modules make when they are imported: module, name of the object, and suffix.
_TEMPORARY = (
    ("wandb.sdk.artifacts.artifact", "Artifact._TMP_DIR", "wandb-artifacts"),
    ("wandb.sdk.data_types._private", "MEDIA_TMP", "wandb-media"),
)
# torch begins with a seed of 64 bits from the kernel, or in old versions with this one. Seeds that somebody has chosen
# are smaller than most of the former.
_CHOSEN_SEEDS = 1 << 48
_TORCH_FIRST_SEED = 67280421310721


def renew() -> None:
    """Repeats the computations. Call it in the worker's working directory, once after the fork."""
    import time

    look_anew_at_directories()
    here = os.getcwd()
    # `multiprocess` is a copy of it, which `datasets` imports.
    for name in ("multiprocessing.process", "multiprocess.process"):
        processes: Any = sys.modules.get(name)
        if hasattr(processes, "ORIGINAL_DIR"):
            processes.ORIGINAL_DIR = here
            key = processes.AuthenticationString(os.urandom(32))
            processes.current_process()._config["authkey"] = key
    for module, name, value in (
        ("torch._dynamo.config", "debug_dir_root", os.path.join(here, "torch_compile_debug")),
        ("torch._inductor.config", "xpu.cutlass_dir", here),
    ):
        entry: Any = getattr(sys.modules.get(module), "_config", {}).get(name)
        if entry is not None and entry.default == _in_server(value, here):
            entry.default = value
    rich: Any = sys.modules.get("rich")
    if hasattr(rich, "_IMPORT_CWD"):
        rich._IMPORT_CWD = here
    docstrings: Any = sys.modules.get("transformers.utils.auto_docstring")
    if hasattr(docstrings, "PATH_TO_TRANSFORMERS"):
        sources = type(docstrings.PATH_TO_TRANSFORMERS)("src")
        docstrings.PATH_TO_TRANSFORMERS = sources.resolve() / "transformers"
    if (logging := sys.modules.get("logging")) is not None:
        started = logging._startTime
        now = time.time_ns() if isinstance(started, int) else time.time()
        logging._startTime = now  # type: ignore[attr-defined]
    # wandb before 0.25 looks for its directory when it is imported.
    core: Any = sys.modules.get("wandb.old.core")
    if hasattr(core, "__stage_dir__"):
        root = core.env.get_dir(here)
        there = [each for each in (".wandb", "wandb") if os.path.exists(os.path.join(root, each))]
        core.__stage_dir__ = there[0] + os.sep if there else None
        core.wandb.START_TIME = time.time()
    for name, first in _first_ranks.items():
        reader: Any = sys.modules[name]
        # Another one was set by somebody else.
        if reader.rank_zero_only.rank == first:
            read = getattr(reader, "_get_rank", None)
            rank = read() if read else int(os.environ.get("LOCAL_RANK", 0))
            reader.rank_zero_only.rank = rank or 0
    for _, directory, suffix in _temporary_directories():
        # The same object, which other modules have imported, too.
        type(directory).__init__(directory, suffix)
    # `random` reseeds itself.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator") and not is_torch_seeded():
        # Not `torch.seed()`, which would also wake CUDA's generators, whose first seed is always the same.
        torch.default_generator.seed()
    # After a fork, `threading` leaves this number to be that of the parent process.
    threading: Any = sys.modules.get("threading")
    if hasattr(threading, "main_thread") and hasattr(threading.Thread, "_set_native_id"):
        threading.main_thread()._set_native_id()


def note_ranks() -> None:
    """Notes what imports have taken for the rank, of which `renew` reads another. Call it in the fork server."""
    for name in READ_RANK:
        only: Any = getattr(sys.modules.get(name), "rank_zero_only", None)
        if hasattr(only, "rank"):
            _first_ranks.setdefault(name, only.rank)


def give_up_temporary() -> set[str]:
    """Removes the temporary directories that `renew` makes again. Call it in the fork server, which never uses them.

    Returns:
        The modules that have made them.
    """
    found = list(_temporary_directories())
    for _, directory, _ in found:
        directory.cleanup()
    return {module for module, _, _ in found}


def _temporary_directories() -> Iterator[tuple[str, Any, str]]:
    """Yields the module, the `tempfile.TemporaryDirectory` and the suffix of each."""
    for module, name, suffix in _TEMPORARY:
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if hasattr(found, "cleanup"):
            yield module, found, suffix


def is_torch_seeded() -> bool:
    """Whether the global generator of torch has a seed that somebody has chosen."""
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    seed = _TORCH_FIRST_SEED if generator is None else generator.initial_seed()
    return bool(seed < _CHOSEN_SEEDS and seed != _TORCH_FIRST_SEED)


def look_anew_at_directories() -> None:
    """Makes imports find modules that have appeared since.

    The archive of this package is left out, since it does not change: each of its finders (one for each package in
    it) would read its whole table of contents again.
    """
    import importlib

    archive = getattr(globals()["__loader__"], "archive", "")
    own = {
        path: finder
        for path, finder in sys.path_importer_cache.items()
        if archive and getattr(finder, "archive", None) == archive
    }
    for path in own:
        del sys.path_importer_cache[path]
    importlib.invalidate_caches()
    sys.path_importer_cache.update(own)


def _in_server(path: str, here: str) -> str:
    """Returns what a path below the working directory was in the fork server, which runs in `/`."""
    return os.path.join("/", os.path.relpath(path, here)) if path != here else "/"
