"""Which modules belong to the user's project, and where their files are.

A module belongs to the project if its file is neither in the standard library nor in a site-packages directory. It is
not installed on nodes, so its source has to be sent. Installed modules are expected to be on the nodes.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator

from flowlite.node.quick_dataclass import dataclass

# flowlite's own modules are sent in the agent's zip. Debuggers are outside of site-packages but belong to no project.
NEVER_SENT = frozenset(
    {
        "flowlite",
        "provider_adapters",
        "cloudpickle",
        "__main__",
        "__mp_main__",
        "debugpy",
        "_pydevd_bundle",
    }
)
_NEVER_SENT_PREFIXES = ("pydev", "_pydev")
_SUFFIXES = tuple(importlib.machinery.all_suffixes())


@dataclass(frozen=True)
class Top:
    """A top-level module of the project, with its file, or a package, with its directory.

    `root` is the directory that it is in, which it needs in `sys.path` unless its directory has another name.
    """

    name: str
    root: str
    path: str
    package: bool


class Project:
    """Looks up modules. It caches what it finds, so each bundle uses a new one."""

    def __init__(self) -> None:
        self._tops: dict[str, tuple[Top, ...]] = {}
        self._codes: dict[str, types.CodeType | None] = {}

    def tops(self, name: str) -> tuple[Top, ...]:
        """The project's top-level module that contains `name`; empty if the module does not belong to the project.

        Several for a namespace package with several directories.
        """
        top = name.partition(".")[0]
        if top not in self._tops:
            self._tops[top] = tuple(_find_tops(top))
        return self._tops[top]

    def owns(self, name: str) -> bool:
        """Whether the module belongs to the project."""
        return bool(self.tops(name))

    def file(self, name: str) -> str | None:
        """The source file of a module of the project (`__init__.py` for a package), or None."""
        for top in self.tops(name):
            steps = name.split(".")[1:]
            if not top.package:
                return None if steps else top.path
            base = os.path.join(top.path, *steps)
            for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if (steps or candidate.endswith("__init__.py")) and os.path.isfile(candidate):
                    return candidate
        return None

    def exists(self, name: str) -> bool:
        """Whether a module of the project, or a namespace directory in it, has this name."""
        if self.file(name) is not None:
            return True
        steps = name.split(".")[1:]
        return any(
            top.package and os.path.isdir(os.path.join(top.path, *steps)) for top in self.tops(name)
        )

    def code(self, name: str) -> types.CodeType | None:
        """The code of a module of the project, from the interpreter's cache if possible. The code is not run."""
        if name not in self._codes:
            path = self.file(name)
            self._codes[name] = None if path is None else _read_code(name, path)
        return self._codes[name]

    def package_of(self, name: str) -> str:
        """The package that the module's relative imports start from."""
        path = self.file(name) or ""
        return name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]

    def importable(self, module: types.ModuleType) -> bool:
        """Whether a node could import this module: it is installed, or its file is where its name implies."""
        name = module.__name__
        # The agent's zip has all of cloudpickle, wherever it is installed here.
        in_zip = name.partition(".")[0] == "cloudpickle"
        if name in NEVER_SENT or in_zip or is_installed_module(module):
            return name not in ("__main__", "__mp_main__")
        found = self.file(name)
        own = getattr(module, "__file__", None)
        if own is None:
            return self.exists(name)
        return found is not None and _same_file(found, own)

    def loaded(self) -> Iterator[tuple[str, str]]:
        """Yields (name, file) for the project's modules that this process has imported."""
        for name, module in list(sys.modules.items()):
            own = getattr(module, "__file__", None)
            if isinstance(own, str) and not is_installed_file(own) and self.owns(name):
                path = self.file(name)
                if path is not None and _same_file(path, own):
                    yield name, path


def is_installed_module(module: types.ModuleType) -> bool:
    """Whether the module comes with Python or was installed by a package manager."""
    name = module.__name__.partition(".")[0]
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return True
    path = getattr(module, "__file__", None)
    if path is None:
        locations = list(getattr(module, "__path__", ()))
        return bool(locations) and all(is_installed_file(location) for location in locations)
    return is_installed_file(path)


@functools.lru_cache(maxsize=8192)
def is_installed_file(path: str) -> bool:
    """Whether a file is in the standard library, in a site-packages directory, or in an archive."""
    path = os.path.abspath(path)
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return path.startswith(_installed_directories()) or not os.path.exists(path)


@functools.cache
def _installed_directories() -> tuple[str, ...]:
    named = sysconfig.get_paths()
    directories = {named[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    directories.update(site.getsitepackages())
    directories.add(site.getusersitepackages())
    return tuple(os.path.abspath(directory) + os.sep for directory in directories)


def _find_tops(name: str) -> Iterator[Top]:
    if not name or name in NEVER_SENT or name.startswith(_NEVER_SENT_PREFIXES):
        return
    if name in sys.stdlib_module_names:
        return
    module = sys.modules.get(name)
    if module is not None:
        origin, locations = getattr(module, "__file__", None), getattr(module, "__path__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None:
            return
        origin, locations = spec.origin, spec.submodule_search_locations
    if locations is not None:
        # Its own directory may have another name: a build may map it to the package (`package-dir` of setuptools).
        own = os.path.dirname(os.path.abspath(origin)) if isinstance(origin, str) else None
        for location in locations:
            path = os.path.abspath(str(location))
            if (
                (os.path.basename(path) == name or path == own)
                and os.path.isdir(path)
                and not is_installed_file(path)
            ):
                yield Top(name, os.path.dirname(path), path, package=True)
    elif isinstance(origin, str) and origin.endswith(_SUFFIXES) and not is_installed_file(origin):
        path = os.path.abspath(origin)
        if os.path.basename(path).partition(".")[0] == name:
            yield Top(name, os.path.dirname(path), path, package=False)


def _read_code(name: str, path: str) -> types.CodeType | None:
    if not path.endswith(".py"):
        return None
    try:
        return importlib.machinery.SourceFileLoader(name, path).get_code(name)
    except (SyntaxError, OSError, ValueError, ImportError):
        # If the module is ever imported on the node, the error is reported there.
        return None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
