"""Checkpoints of a task: which files are copied while it runs, where to, and how often."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from flowlite.spec.base import Spec, shown
from flowlite.spec.storage import BUCKET, mount_path, within

Nodes = Literal["leader", "all"]


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not allowed; give a path on the node, as in '/ckpt'")
    return mount_path(value)


def _sync(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{shown(value)} is not allowed; give 's3://bucket/prefix', or an absolute directory"
        )
    if "://" in value:
        if not BUCKET.fullmatch(value):
            raise ValueError(f"{shown(value)} is not a bucket; write it as in 's3://bucket/prefix'")
        return value.rstrip("/")
    if not value.startswith("/") or not value.isprintable() or ".." in value.split("/"):
        raise ValueError(
            f"{shown(value)} is neither a bucket ('s3://bucket/prefix') nor an absolute directory"
        )
    return "/" + posixpath.normpath(value).lstrip("/")


class Checkpoint(Spec):
    """A directory of checkpoints that is copied away while workers run, and restored before they start again.

    Attributes:
        path: The directory on the node that the trainer writes its checkpoints to.
        sync: Where copies are kept: "s3://bucket/prefix", or a directory that outlives the nodes.
        every: Seconds from one copy to the next, while workers run.
        keep: How many complete sets are kept there.
        nodes: "leader" copies the files of node 0; "all" those of every node, for checkpoints in shards.
        final_seconds: Longest time of the last copy, after the workers have ended.
    """

    path: Annotated[str, PlainValidator(_path)]
    sync: Annotated[str, PlainValidator(_sync)]
    every: Annotated[float, Field(gt=0)] = 300.0
    keep: Annotated[int, Field(ge=1)] = 3
    nodes: Nodes = "leader"
    final_seconds: Annotated[float, Field(gt=0)] = 300.0

    positional: ClassVar[tuple[str, ...]] = ("path", "sync")

    if TYPE_CHECKING:

        def __init__(
            self,
            path: str,
            sync: str,
            *,
            every: float = 300.0,
            keep: int = 3,
            nodes: Nodes = "leader",
            final_seconds: float = 300.0,
        ) -> None: ...

    @model_validator(mode="after")
    def _apart(self) -> Checkpoint:
        if within(self.sync, self.path) or within(self.path, self.sync):
            raise ValueError(
                f"sync: {self.sync!r} and path {self.path!r} lie in each other; a copy needs a place of its own"
            )
        return self


def _as_checkpoint(value: object) -> object:
    if value is None or isinstance(value, Checkpoint | Mapping):
        return value
    raise ValueError(
        f"{shown(value)} is not allowed; give a mapping as in "
        "{'path': '/ckpt', 'sync': 's3://bucket/prefix'}"
    )


CheckpointField = Annotated[Checkpoint, BeforeValidator(_as_checkpoint)]


def checkpoint_problem(
    checkpoint: Checkpoint | None, volumes: Mapping[str, object], mounts: Iterable[str], nodes: int
) -> str:
    """Why a checkpoint conflicts with the volumes and mounts of a task, or ""."""
    if checkpoint is None:
        return ""
    path = checkpoint.path
    for mount in mounts:
        if within(path, mount) or within(mount, path):
            return f"checkpoint.path: {path!r} meets the mount {mount!r}, which is read-only; put them side by side"
    for volume in volumes:
        if within(volume, path) and volume != path:
            return f"checkpoint.path: the volume {volume!r} lies inside {path!r}; put it beside or above"
        if within(path, volume) and checkpoint.nodes == "all" and nodes > 1:
            return (
                f"checkpoint.nodes: 'all' does not go with {path!r}, which lies on the volume {volume!r}: every node "
                "sees the same files there; leave it out, and the leader copies them all"
            )
    return ""
