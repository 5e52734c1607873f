"""`flow cp`: copies files to and from the nodes of a running task."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json
from flowlite.errors import ConfigError, FlowError, NotFound, ProviderError

if TYPE_CHECKING:
    from flowlite.api.node_files import CopyResult
    from flowlite.api.task import Task

_ON_NODE = re.compile(r"(?P<task>[A-Za-z0-9][A-Za-z0-9._-]*):(?:(?P<node>\d+):)?(?P<path>.*)", re.S)


def cp(
    source: Annotated[
        str, typer.Argument(help="TASK[:NODE]:PATH, or a path here.", metavar="SOURCE")
    ],
    target: Annotated[
        str, typer.Argument(help="A path here, or TASK[:NODE]:PATH.", metavar="TARGET")
    ],
    json: Json = False,
) -> None:
    """Copy files or directories from a node of a running task, or to it.

    A relative path on the node begins in the working directory of the workers. Nothing here is overwritten; run again,
    an interrupted copy resumes.
    """
    here = [_on_node(each) is None for each in (source, target)]
    if here == [True, True]:
        raise ConfigError("neither path is on a node; write TASK:PATH, or TASK:NODE:PATH")
    if here == [False, False]:
        raise ConfigError(
            "both paths are on nodes; copy to this machine first. A path here that has a colon begins with ./"
        )
    from flowlite.api.client import Flow
    from flowlite.cli.transfer_progress import tell_copied

    found = _on_node(target if here[0] else source)
    assert found is not None
    task = Flow().get_task(found["task"])
    node = int(found["node"] or 0)
    if here[0]:
        copied = _send(task, node, Path(source), found["path"] or ".", target)
        place, root = target, ""
    else:
        copied, below, name = _bring(task, node, found["path"] or ".", target)
        place, root = str(below / name), str(below)
    tell_copied(place, copied.files, copied.bytes, json=json, taken=copied.taken, below=root)


def _on_node(text: str) -> re.Match[str] | None:
    """Parses a path on a node; None for a local path, which includes those with a slash before the colon."""
    return _ON_NODE.fullmatch(text)


def _bring(task: Task[Any], node: int, path: str, target: str) -> tuple[CopyResult, Path, str]:
    """Returns what was copied, the local directory, and the local name of a single file."""
    from flowlite.api import node_files
    from flowlite.cli.transfer_progress import Transfer
    from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory

    with task.reach(node) as there, _naming(task, node):
        found = node_files.files_at(there, path)
        root, name = _place_here(path, target, single=found.single)
        with Transfer(path, found.size) as transfer:
            copied = node_files.bring(
                there, found, OutputDirectory(root), transfer.moved, name=name
            )
    output.warn_of_left_out(copied.left_out)
    return copied, root, name


@contextmanager
def _naming(task: Task[Any], node: int) -> Iterator[None]:
    """Adds the node to errors about its files, which do not name it."""
    try:
        yield
    except (NotFound, ProviderError) as error:
        if type(error) not in (NotFound, ProviderError):
            raise
        raise type(error)(f"node {node} of task {task.name} ({task.id}): {error.text}") from None


def _place_here(path: str, target: str | Path, *, single: bool) -> tuple[Path, str]:
    """Returns the local directory of the copies, and the local name of a `single` file, as the node says that it is.

    As with cp, what is copied into a directory keeps its name: the one that was asked for. A name that the node gives
    could lead elsewhere, or be that of another file, such as `.bashrc`. A target with a slash at its end is a directory
    that need not exist.
    """
    from flowlite.supervise.attempt.outputs.output_directory import check_made

    name = posixpath.basename(posixpath.normpath(path))
    name = "" if name in (".", "..", "~") else name
    here = Path(target)
    # `Path` drops the slash at the end.
    inside = str(target).endswith("/") or here.is_dir()
    if not single and inside and name:
        check_made(here / name)
    if not single:
        return (here / name if inside else here).absolute(), ""
    if not inside:
        return here.absolute().parent, here.name
    if not name:
        raise FlowError(f"the node says that {path} is a file, and it can only be a directory")
    return here.absolute(), name


def _send(task: Task[Any], node: int, source: Path, path: str, shown: str) -> CopyResult:
    from flowlite.api import node_files
    from flowlite.api.volume_files.files import count_others, files_below
    from flowlite.cli.transfer_progress import Transfer

    if not source.exists():
        raise ConfigError(f"{source} does not exist")
    with task.reach(node) as there, _naming(task, node):
        target = node_files.place_for(there, source, path)
        total = sum(each.stat().st_size for each in files_below(source))
        with Transfer(shown, total) as transfer:
            copied = node_files.send(there, source, target, transfer.moved)
    output.warn_of_others(count_others(source))
    return copied
