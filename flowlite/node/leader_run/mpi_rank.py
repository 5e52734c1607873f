"""One process of a gang started by `mpirun`: `gang rank ATTEMPT_DIR [--horovod-store ADDRESS] [COMMAND…]`.

It sets the same ranks for torch and flowlite as MPI does, changes to the workers' directory, and runs the command or
the function. The result is the return value of rank 0. The first exception of any rank is sent to node 0, so that it is
raised on the submitting machine.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..system import atomic_files
from . import mpi
from .context import GangContext
from .remote_exec import call

_NO_RANK = 2
_KEEP = 'exec "$FLOW_GANG/bin/flow-rank" --failed "$1"'


def main(directory: str, arguments: Sequence[str]) -> int:
    """Runs `gang rank ATTEMPT_DIR …`. With `--failed SUMMARY` it receives the failure of a rank on another node."""
    place = GangContext.read(directory)
    if arguments[:1] == ["--failed"]:
        return _keep(place, sys.stdin.buffer.read(), arguments[1])
    found = mpi.ranks(os.environ)
    if found is None:
        sys.stderr.write("flowlite: mpirun told this process no rank; is it Open MPI or MPICH?\n")
        return _NO_RANK
    os.environ.update(variables(place, found))
    if arguments[:1] == [mpi.STORE]:
        from . import horovod

        told = horovod.variables(place, found, arguments[1])
        os.environ.update(
            {each: told[each] for each in told.keys() - place.config.environment.keys()}
        )
        arguments = arguments[2:]
    # A launcher forwards this warning signal to all processes; it would kill those without a handler.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.chdir(place.config.workdir or place.paths.home)
    if arguments:
        return _become(arguments)
    return _call(place, found[0])


def variables(place: GangContext, found: tuple[int, int, int, int]) -> dict[str, str]:
    """Returns the variables of a process started by `mpirun`, beyond those that MPI sets."""
    rank, size, local, here = found
    told = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": here,
        "NODE_RANK": place.rank,
        "GROUP_RANK": place.rank,
        "FLOW_NODE_RANK": place.rank,
    }
    return {name: str(value) for name, value in told.items()}


def _become(argv: Sequence[str]) -> int:
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        sys.stderr.write(f"flowlite: cannot start the command {argv[0]!r}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _call(place: GangContext, rank: int) -> int:
    from ..worker import worker, worker_spec

    directory = place.paths.directory
    result = place.paths.stream(0, "result") if rank == 0 else directory / f"mpi{rank}.result"
    order: dict[str, Any] = {
        "rank": rank,
        "node": place.rank,
        "name": place.config.name,
        "call": worker_spec.call_with_paths(place.config.call, place.paths),
        "result": str(result),
        "failure": str(directory / f"mpi{rank}.failure"),
    }
    # Handlers run in reverse order, so the first one registered runs last.
    atexit.register(_finalize)
    code = worker.run_function(order)
    failure = Path(order["failure"])
    if failure.exists():
        # Without this, finalizing could deadlock, since other ranks may be waiting for this one.
        atexit.unregister(_finalize)
        _bring(place, result, _with_rank(failure.read_text(), rank, place.rank))
    if rank:
        result.unlink(missing_ok=True)
    worker.leave(code)


def _with_rank(summary: str, rank: int, node: int) -> str:
    """The summary of a failure that says which rank failed: node 0 reports it as the failure of its only worker."""
    found = json.loads(summary)
    first, *more = str(found.get("message") or "").split("\n", 1)
    first = f"{first} (rank {rank} of MPI, on node {node})".lstrip()
    return json.dumps({**found, "message": "\n".join([first, *more])})


def _finalize() -> None:
    """Finalizes MPI, which mpi4py leaves to the interpreter's exit; a worker exits without it."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.Finalize()


def _bring(place: GangContext, result: Path, summary: str) -> None:
    """Sends the failure of this rank to node 0."""
    if place.rank == 0:
        _keep(place, result.read_bytes(), summary)
        return
    with suppress(OSError), open(result, "rb") as file:
        call(place, 0, ["/bin/sh", "-c", _KEEP, "sh", summary], source=file.fileno())


def _keep(place: GangContext, outcome: bytes, summary: str) -> int:
    """On node 0: saves a failure. The first one saved is the one that the task reports."""
    result, failure = place.paths.stream(0, "result"), place.paths.failure(0)
    part = failure.with_name(f"{failure.name}.{os.getpid()}.part")
    atomic_files.place(json.dumps(json.loads(summary)).encode(), str(part), 0o600)
    try:
        os.link(part, failure)
    except FileExistsError:
        return 0
    finally:
        part.unlink()
    atomic_files.place(outcome, str(result), 0o600)
    return 0
