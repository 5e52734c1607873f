"""Storage of a task: named volumes, read-only mounts, and their paths on the nodes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_serializer

from flowlite.spec.base import Spec, as_mapping, shown

Interface = Literal["file", "block"]

# Nothing may be mounted at these paths or below them, since the node would stop working.
_SYSTEM_TREES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys",
    "/usr", "/System", "/Library",
)  # fmt: skip
# Something may be mounted below these paths, but not at them.
_SHARED_ROOTS = (
    "/", "/home", "/media", "/opt", "/root", "/tmp", "/var", "/private", "/Users", "/Volumes",
)  # fmt: skip

_VOLUME_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^/\s?#@]+(/[^\s?#@]*)?", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]{2,40}", re.ASCII)
BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\x00-\x1f]*)?", re.ASCII)


def volume_name(value: object) -> str:
    """Returns the value if it is a valid name for a volume. Raises ValueError."""
    if isinstance(value, str) and value.startswith("s3://"):
        raise ValueError(f"{value!r} is a bucket, not a volume; mount it with mounts= (--mount)")
    if not isinstance(value, str) or not _VOLUME_NAME.fullmatch(value):
        proposal = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-")[:63].strip("-")
        hint = f"; did you mean {proposal!r}?" if isinstance(value, str) and proposal else ""
        raise ValueError(
            f"{shown(value)} cannot name a volume: a to z, 0 to 9 and dashes inside, at most 63{hint}"
        )
    return value


def within(path: str, directory: str) -> bool:
    """Whether a normalised path is a directory, or is below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def mount_path(path: str) -> str:
    """Returns the normalised path if something may be mounted there. Raises ValueError.

    A trailing slash and doubled slashes are dropped; `.` and `..` are refused, since their meaning depends on links.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute; write it from the root, as in '/data'")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ValueError(f"{path!r} has control characters in it")
    plain = "/" + posixpath.normpath(path).lstrip("/")
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} has '.' or '..' in it; write {plain!r} if that is meant")
    if len(plain.encode()) > 1024:
        raise ValueError(f"{shown(plain)} is longer than 1024 bytes")
    if plain in _SHARED_ROOTS:
        below = posixpath.join(plain, "data")
        raise ValueError(f"{plain!r} would be hidden by it; choose a path below, as in {below!r}")
    for tree in _SYSTEM_TREES:
        if within(plain, tree):
            raise ValueError(f"{plain!r} belongs to the system; choose another, as in '/data'")
    return plain


def nesting_problem(paths: Iterable[str]) -> str:
    """Why these normalised paths cannot all be mounted, or ""."""
    ordered = sorted(paths, key=lambda path: path.split("/"))
    for upper, lower in pairwise(ordered):
        if upper == lower:
            return f"{upper!r} is used twice; each volume and mount needs a path of its own"
        if lower.startswith(upper + "/"):
            return f"{lower!r} lies inside {upper!r}; put them side by side"
    return ""


def plain_paths(value: object) -> dict[str, Any]:
    """Returns a mapping (None is an empty one) with its mount paths normalised. Raises ValueError."""
    found: dict[str, Any] = {}
    if value is None:
        return found
    for path, what in as_mapping(value).items():
        plain = mount_path(path)
        if plain in found:
            raise ValueError(f"{plain!r} is used twice; each volume needs a path of its own")
        found[plain] = what
    return found


def _bucket(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not allowed; give an address as in 's3://bucket/path'")
    if not BUCKET.fullmatch(value):
        scheme = value.partition("://")[0] if "://" in value else ""
        other = f" ({scheme}:// is not supported)" if scheme not in {"", "s3"} else ""
        raise ValueError(
            f"{shown(value)} is not a bucket; write it as in 's3://bucket/path'{other}"
        )
    return value


class Volume(Spec):
    """A named volume that outlives tasks.

    Attributes:
        name: Its name at the provider: a to z, 0 to 9 and dashes.
        size_gb: Size in GB with which it is created if it does not exist yet; None leaves that to the provider.
        interface: "file" is shared by all nodes; "block" belongs to one node.
    """

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Annotated[str, PlainValidator(volume_name)]
    size_gb: Annotated[float, Field(gt=0)] | None = None
    interface: Interface = "file"

    if TYPE_CHECKING:

        def __init__(
            self, name: str, *, size_gb: float | None = None, interface: Interface = "file"
        ) -> None: ...


def _as_volume(value: object) -> object:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping | Volume):
        return value
    raise ValueError(
        f"{shown(value)} is not allowed; give a volume's name, or a mapping with 'name', 'size_gb' and 'interface'"
    )


def _endpoint(value: object) -> str:
    if not isinstance(value, str) or not _ENDPOINT.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not allowed; give the address of an S3 server, as in "
            "'https://s3.example.org' or 'http://10.0.0.1:9000'"
        )
    return value.rstrip("/")


def _region(value: object) -> str:
    if not isinstance(value, str) or not _REGION.fullmatch(value):
        raise ValueError(f"{shown(value)} is not allowed; give a region, as in 'eu-central-1'")
    return value


class Mount(Spec):
    """A bucket, or a prefix of one, mounted as a read-only directory.

    Attributes:
        url: "s3://bucket", or "s3://bucket/prefix".
        endpoint_url: Address of the S3 server, if it is not AWS; None for that of AWS_ENDPOINT_URL or the profile.
        region: Region of the bucket; None for that of the profile, or for that which the server reports.
        profile: Profile of ~/.aws with the credentials; None for AWS_PROFILE and the other variables.
    """

    positional: ClassVar[tuple[str, ...]] = ("url",)

    url: Annotated[str, PlainValidator(_bucket)]
    endpoint_url: Annotated[str, PlainValidator(_endpoint)] | None = None
    region: Annotated[str, PlainValidator(_region)] | None = None
    profile: Annotated[str, Field(min_length=1)] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            url: str,
            *,
            endpoint_url: str | None = None,
            region: str | None = None,
            profile: str | None = None,
        ) -> None: ...

    @model_serializer
    def _short(self) -> str | dict[str, str]:
        """The shortest notation: the URL alone if nothing else is set."""
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name))}
        return self.url if len(given) == 1 else given


def _as_mount(value: object) -> object:
    if isinstance(value, str):
        return {"url": _bucket(value)}
    if isinstance(value, Mapping | Mount):
        return value
    raise ValueError(
        f"{shown(value)} is not allowed; give an address as in 's3://bucket/path', or a mapping with 'url', "
        "'endpoint_url', 'region' and 'profile'"
    )


Volumes = Annotated[
    dict[str, Annotated[Volume, BeforeValidator(_as_volume)]], BeforeValidator(plain_paths)
]
Mounts = Annotated[
    dict[str, Annotated[Mount, BeforeValidator(_as_mount)]], BeforeValidator(plain_paths)
]


def storage_problem(volumes: Mapping[str, Volume], mounts: Mapping[str, Mount], nodes: int) -> str:
    """Why a gang of this many nodes cannot use these volumes and mounts together, or ""."""
    nested = nesting_problem([*volumes, *mounts])
    if nested:
        return f"{'volumes' if volumes else 'mounts'}: {nested}"
    seen: dict[str, Volume] = {}
    for path, volume in volumes.items():
        if volume.interface == "block" and nodes > 1:
            return (
                f"volumes: {path!r} is a block volume, which one node alone can use, and there are {nodes}; "
                "give it interface 'file', or run with num_instances=1"
            )
        if seen.setdefault(volume.name, volume) != volume:
            return f"volumes: {volume.name!r} is described in two ways; its size and interface must agree"
    return ""
