"""What the modules that a fork server imports read and change, as far as a worker could tell the difference.

A module may read a variable of the environment, the working directory or nothing when it is imported, and may print. A
forked worker must only run a script or a function if the same would have happened in it. So reads are noted while
modules are imported, and compared with the worker's environment before it is forked. What libraries in C read is known
by name. Scripts must not differ in anything, not even in signals or timers (process_state.py); of functions only the
reads are compared.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

from ..worker import renewed_modules
from . import process_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set
    from types import FrameType
    from typing import Any

DIRECTORY = "the working directory"
TEMPORARY = "a temporary file"
"""A file or directory of `tempfile`. The first rank to end would remove it for all others."""
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
# Modules that look through all variables for those with a prefix.
_PREFIXES = {"tqdm.utils": "TQDM_", "fsspec.config": "FSSPEC"}
# The functions that make temporary files. Others of tempfile open one only to see whether a directory can be used.
_MAKE_TEMPORARY = ("mkdtemp", "_mkstemp_inner", "TemporaryFile")
_TRANSPARENT = (
    "posixpath",
    "genericpath",
    "pathlib",
    "os",
    "_collections_abc",
    "collections.abc",
    __name__,
)


class ObservedImports:
    """What was read and changed by the imports of one fork server.

    Attributes:
        environment: The environment before the first import.
        reads: For each import, the variables that were read, each with the module that read it.
        said: The import that has written to the standard streams; "" if none has.
        changed: Which import has changed what of this process that workers do not inherit; "" if none has.
        failed: The import that raised an error other than that it does not exist; "" if none has.
        loaded: The modules that were imported.
    """

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.reads: dict[str, dict[str, str]] = {}
        self.said = ""
        self.changed = ""
        self.failed = ""
        self.loaded: dict[str, None] = {}
        self._present = frozenset(sys.modules)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """A context in which one module is imported."""
        found = self.reads.setdefault(name, {})
        before, state = _written(), process_state.ProcessState()
        kind: Any = type(os.environ)
        originals = kind.__getitem__, kind.__iter__, os.getcwd, os.mkdir, os.open
        read, iterate, getcwd, mkdir, opened = originals

        def noting_read(environ: Any, variable: str) -> str:
            reader = _reader(sys._getframe(1))
            if variable.startswith(_PREFIXES.get(reader, "")):
                found.setdefault(variable, reader)
            return read(environ, variable)  # type: ignore[no-any-return]

        def noting_iteration(environ: Any) -> Any:
            reader = _reader(sys._getframe(1))
            prefix = _PREFIXES.get(reader)
            found.setdefault(f"{prefix}*" if prefix else EVERYTHING, reader)
            return iterate(environ)

        def noting_directory() -> str:
            reader = _reader(sys._getframe(1))
            if reader not in _REPEATED:
                found.setdefault(DIRECTORY, reader)
            return getcwd()

        def noting_temporary(frame: FrameType | None) -> None:
            maker = None
            while frame is not None and frame.f_globals.get("__name__") == "tempfile":
                maker, frame = maker or frame.f_code.co_name, frame.f_back
            if maker in _MAKE_TEMPORARY:
                found.setdefault(TEMPORARY, _reader(frame))

        def noting_mkdir(*arguments: Any, **options: Any) -> None:
            noting_temporary(sys._getframe(1))
            mkdir(*arguments, **options)

        def noting_open(*arguments: Any, **options: Any) -> int:
            noting_temporary(sys._getframe(1))
            return opened(*arguments, **options)

        kind.__getitem__, kind.__iter__, os.getcwd = noting_read, noting_iteration, noting_directory
        os.mkdir, os.open = noting_mkdir, noting_open
        try:
            yield
        except ImportError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                self.failed = self.failed or name
            raise
        except BaseException:
            self.failed = self.failed or name
            raise
        finally:
            kind.__getitem__, kind.__iter__, os.getcwd, os.mkdir, os.open = originals
            if _has_locks():
                found.setdefault(LOCK, name)
            if _written() != before:
                self.said = self.said or name
            if not self.changed and (change := state.change()):
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

    def why_read(self, environment: Mapping[str, str]) -> str:
        """Returns which import would have read something else in a worker with this environment; "" if none."""
        differ = self._different(environment)
        for reads in self.reads.values():
            for name, reader in reads.items():
                if name in (TEMPORARY, LOCK):
                    return f"{reader} makes {name} when it is imported"
                if name == DIRECTORY or _is_among(name, differ):
                    return f"{reader} reads {name} when it is imported"
        return ""

    def _different(self, environment: Mapping[str, str]) -> set[str]:
        """Returns the variables whose values in this environment are not those before the first import."""
        both = {**self.environment, **environment}
        return {name for name in both if self.environment.get(name) != environment.get(name)}

    def why_not(
        self, environment: Mapping[str, str], early: frozenset[str], writes: frozenset[str]
    ) -> str:
        """Returns why a script must not run in a process with these imports; "" if it may.

        Args:
            environment: The environment of the worker.
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
        if why := self.why_read(environment):
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
