"""Who imports whom in flowlite and its adapters, read from the sources: lazy and type-checking imports count."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("flowlite", "provider_adapters")


@dataclass(frozen=True)
class Imports:
    """Names of modules and folders are dotted; a package's own file has the name of the package.

    Attributes:
        files: Which modules each module imports, less the packages that it is in.
        folders: Which folders the modules of each folder import from, less those above and below it.
        modules_in: How many modules each folder has.
    """

    files: Mapping[str, Set[str]]
    folders: Mapping[str, Set[str]]
    modules_in: Mapping[str, int]


def import_graph(root: Path) -> Imports:
    """Reads all sources below a checkout."""
    sources = {_name(path, root): path for each in PACKAGES for path in (root / each).rglob("*.py")}
    packages = {name for name, path in sources.items() if path.name == "__init__.py"}
    files: dict[str, set[str]] = defaultdict(set)
    folders: dict[str, set[str]] = defaultdict(set)
    for name, path in sources.items():
        for target in _imported(ast.parse(path.read_text()), name, name in packages, set(sources)):
            if target == name or name.startswith(f"{target}."):
                continue
            files[name].add(target)
            here, there = (_folder(each, packages) for each in (name, target))
            if not (f"{here}.".startswith(f"{there}.") or f"{there}.".startswith(f"{here}.")):
                folders[here].add(there)
    counts = Counter(_folder(name, packages) for name in sources if name not in packages)
    return Imports(files, folders, counts)


def circles(graph: Mapping[str, Set[str]]) -> list[str]:
    """One circle of the graph, in order; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(module: str, packages: Set[str]) -> str:
    return module if module in packages else module.rpartition(".")[0]


def _imported(tree: ast.AST, module: str, is_package: bool, known: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            named = [f"{base}.{each.name}" for each in node.names]
        else:
            continue
        for name in named:
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name:
                yield name


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    above = module.split(".")
    above = above[: len(above) - node.level + (1 if is_package else 0)]
    return ".".join([*above, *([node.module] if node.module else [])])
