"""What the modules that a fork server imports read and change, as far as a worker could tell the difference.

A module may read a variable of the environment, the working directory or nothing when it is imported, and may print. A
forked worker must only run a script or a function if the same would have happened in it. So reads are noted while
modules are imported, and compared with the worker's environment before it is forked. What libraries in C read is known
by name. Scripts must not differ in anything, not even in signals or timers (process_state.py); of functions only the
reads are compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys

from ..worker import renewed_modules
from . import import_instrumentation, process_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set
    from types import FrameType
    from typing import Any

OPENED = "a socket, pipe or file"
"""One that stays open, and that all ranks of a node would share."""
LOCK = "a lock of multiprocessing"
"""It would be one lock for all ranks of a node, and for later tasks. A rank that dies may leave it locked."""
EVERYTHING = "all variables"
SITE = "site"
"""The import of `site`, which runs the lines of .pth files."""
# What Python itself and libraries in C read when they start or are loaded.
_READ_AT_START = re.compile(
    r"PYTHON.*|LC_.*|LANG|LANGUAGE|LD_.*|GLIBC_TUNABLES|MALLOC_.*|PATH|HOME|TZ|OMP_.*|GOMP_.*|KMP_.*|MKL_.*"
    r"|OPENBLAS_.*|GOTO_.*|BLIS_.*|NUMEXPR_.*|TORCH_.*|PYTORCH_.*|C10_.*|ATEN_.*|DNNL_.*|ONEDNN_.*|CUBLAS_.*|CUDNN_.*"
    r"|TRITON_.*|KINETO_.*|TF_.*|XLA_.*|JAX_.*|HF_.*|TRANSFORMERS_.*"
)
# Modules whose reading of the directory is repeated in the worker, or has no effect.
_REPEATED = renewed_modules.READ_DIRECTORY | {"tempfile", "inspect"}
# What those that read the rank read, which is repeated, too.
_RANKS = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"})
# Modules that look through all variables for those with a prefix.
_PREFIXES = {"tqdm.utils": "TQDM_", "fsspec.config": "FSSPEC"}
_ASKED = (
    import_instrumentation.DIRECTORY,
    import_instrumentation.ARGUMENTS,
    import_instrumentation.MAIN_FILE,
)
_DONE = {import_instrumentation.TEMPORARY: "makes", LOCK: "makes", OPENED: "opens"}
_TRANSPARENT = (
    "posixpath",
    "genericpath",
    "pathlib",
    "os",
    "_collections_abc",
    "collections.abc",
    "io",
    "glob",
    "fnmatch",
    import_instrumentation.__name__,
    __name__,
)


class ObservedImports:
    """What was read and changed by the imports of one fork server.

    Attributes:
        environment: The environment before the first import.
        reads: For each import, the variables that were read, each with the module that read it.
        files: Relative paths that imports have looked for, each with the module that did.
        said: The import that has written to the standard streams; "" if none has.
        changed: Which import has changed what of this process that workers do not inherit; "" if none has.
        failed: The import that raised an error other than that it does not exist; "" if none has.
        loaded: The modules that were imported.
    """

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.reads: dict[str, dict[str, str]] = {}
        self.files: dict[str, str] = {}
        self.said = ""
        self.changed = ""
        self.failed = ""
        self.loaded: dict[str, None] = {}
        self._present = frozenset(sys.modules)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """A context in which one module is imported."""
        found = self.reads.setdefault(name, {})
        temporary: dict[str, None] = {}
        before, state = _written(), process_state.ProcessState()
        kind: Any = type(os.environ)
        originals = kind.__getitem__, kind.__iter__
        read, iterate = originals

        def noting_read(environ: Any, variable: str) -> str:
            reader = _reader(sys._getframe(1))
            known = found.get(variable)
            # A reader that will be repeated must not hide another one.
            first = known is None or known in renewed_modules.READ_RANK
            if first and variable.startswith(_PREFIXES.get(reader, "")):
                found[variable] = reader
            return read(environ, variable)  # type: ignore[no-any-return]

        def noting_iteration(environ: Any) -> Any:
            reader = _reader(sys._getframe(1))
            prefix = _PREFIXES.get(reader)
            found.setdefault(f"{prefix}*" if prefix else EVERYTHING, reader)
            return iterate(environ)

        def note(what: str, frame: FrameType | None) -> None:
            reader = name if frame is None else _reader(frame)
            if what == import_instrumentation.TEMPORARY:
                temporary.setdefault(reader)
            elif reader not in _REPEATED:
                found.setdefault(what, reader)

        def note_file(path: str, frame: FrameType) -> None:
            if (reader := _reader(frame)) not in _REPEATED:
                self.files.setdefault(path, reader)

        kind.__getitem__, kind.__iter__ = noting_read, noting_iteration
        opened = _opened()
        try:
            with import_instrumentation.watched(note, note_file):
                yield
        except ImportError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                self.failed = self.failed or name
            raise
        except BaseException:
            self.failed = self.failed or name
            raise
        finally:
            kind.__getitem__, kind.__iter__ = originals
            renewed_modules.note_ranks()
            given_up = renewed_modules.give_up_temporary()
            for maker in [each for each in temporary if each not in given_up][:1]:
                found[import_instrumentation.TEMPORARY] = maker
            if _opened() - opened:
                found.setdefault(OPENED, name)
            if _has_locks():
                found.setdefault(LOCK, name)
            if _written() != before:
                self.said = self.said or name
            if not self.changed and (change := state.change(before_script=name == "sitecustomize")):
                self.changed = f"{name} {change} when it is imported"
            new = [each for each in sys.modules if each not in self._present]
            self.loaded.update(dict.fromkeys(new))
            self.loaded.pop("__mp_main__", None)

    @property
    def changes(self) -> dict[str, str | None]:
        """The variables that imports have set, or removed (None)."""
        now = dict(os.environ)
        names = [
            name
            for name in {**self.environment, **now}
            if self.environment.get(name) != now.get(name)
        ]
        return {name: now.get(name) for name in names}

    def why_read(self, environment: Mapping[str, str], directory: str) -> str:
        """Returns which import would have found something else in a worker, or has something that is not for several.

        "" if none.
        """
        differ = self._different(environment)
        for reads in self.reads.values():
            for name, reader in reads.items():
                if name in _DONE:
                    return f"{reader} {_DONE[name]} {name} when it is imported"
                repeated = name in _RANKS and reader in renewed_modules.READ_RANK
                if name in _ASKED or (_is_among(name, differ) and not repeated):
                    return f"{reader} reads {name} when it is imported"
        for path, reader in self.files.items():
            if any(os.path.lexists(os.path.join(each, path)) for each in (directory, "/")):
                return f"{reader} looks for {path} in the working directory when it is imported"
        return ""

    def _different(self, environment: Mapping[str, str]) -> set[str]:
        """Returns the variables whose values in this environment are not those before the first import."""
        both = {**self.environment, **environment}
        return {name for name in both if self.environment.get(name) != environment.get(name)}

    def why_not(
        self,
        environment: Mapping[str, str],
        directory: str,
        early: frozenset[str],
        writes: frozenset[str],
    ) -> str:
        """Returns why a script must not run in a process with these imports; "" if it may.

        Args:
            environment: The environment of the worker.
            directory: Its working directory.
            early: The modules that the script imports before it sets any variable.
            writes: The variables that the script sets.
        """
        if self.said:
            return f"{self.said} prints when it is imported"
        if self.changed:
            return self.changed
        if self.failed:
            return f"{self.failed} cannot be imported ahead"
        differ = self._different(environment)
        for name in sorted(differ):
            if _READ_AT_START.fullmatch(name):
                return f"{name} is read at the start, and differs here"
        if why := self.why_read(environment, directory):
            return why
        for imported, reads in self.reads.items():
            for name, reader in reads.items():
                if imported not in early and _is_among(name, writes):
                    return (
                        f"{reader} reads {name} when it is imported, and the script sets it before"
                    )
        late = [name for name in self.reads if name not in early]
        set_by_script = sorted(name for name in writes if _READ_AT_START.fullmatch(name))
        if late and set_by_script:
            return f"the script sets {set_by_script[0]} before it imports {late[0]}"
        return ""


def _is_among(read: str, names: Set[str]) -> bool:
    """Whether what was read is one of these variables: its name, the beginning of it and "*", or EVERYTHING."""
    if read.endswith("*"):
        return any(name.startswith(read[:-1]) for name in names)
    return read in names or (read == EVERYTHING and bool(names))


def _reader(frame: FrameType | None) -> str:
    """Returns the module whose code asked."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in _TRANSPARENT and not name.startswith(("importlib.", "pathlib.")):
            return name
        frame = frame.f_back
    return "?"


def _opened() -> set[tuple[str, str]]:
    """The descriptors of this process that two processes cannot share: sockets, pipes, and files that are written."""
    found = set()
    with contextlib.suppress(OSError):
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{each}")
                flags = fcntl.fcntl(int(each), fcntl.F_GETFL)
                written = flags & os.O_ACCMODE != os.O_RDONLY and path != os.devnull
                if written or path.startswith(("socket:", "pipe:", "anon_inode:")):
                    found.add((each, path))
    return found


def _has_locks() -> bool:
    """Whether there are locks, semaphores or queues of multiprocessing in this process."""
    kind: Any = getattr(sys.modules.get("multiprocessing.synchronize"), "SemLock", ())
    made: Any = getattr(sys.modules.get("multiprocessing.util"), "_afterfork_registry", {})
    return any(isinstance(each, kind) for each in list(made.values()))


def _written() -> tuple[int, int]:
    """Returns the sizes of the files that the standard streams write to."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    return os.fstat(1).st_size, os.fstat(2).st_size
