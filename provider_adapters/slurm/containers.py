"""The arguments with which pyxis or apptainer runs a Slurm step in a container. Pure; golden-tested.

Agent and workers run inside the container; commands that reach the node later run outside. They share files and
sockets, so flowlite's directories have the same path inside and outside. Network, processes and shared memory are the
node's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import dirname, normpath

from flowlite.errors import ConfigError
from provider_adapters.slurm.script import StepWrapper

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_FILES = (".sqsh", ".squashfs", ".sif", ".img")


def wrap(kind: str, image: str, mounts: Sequence[str]) -> StepWrapper:
    """The wrapper for a step.

    Args:
        kind: "pyxis", "apptainer" or "singularity".
        image: As in `docker pull`, with a scheme, or the path of a file on the nodes.
        mounts: Directories that must have the same path inside and outside.

    Raises:
        ConfigError: A directory cannot be expressed in that program's syntax.
    """
    places = shown(mounts)
    if kind == "pyxis":
        pairs = ",".join(f"{place}:{place}" for place in places)
        return StepWrapper(
            srun=(
                f"--container-image={_for_enroot(image)}",
                "--container-mount-home",
                *((f"--container-mounts={pairs}",) if pairs else ()),
                "--container-workdir=/",
            )
        )
    return StepWrapper(
        command=(
            *(kind, "--silent", "exec", "--nv"),
            *(("--bind", ",".join(places)) if places else ()),
            *("--pwd", "/"),
            _for_apptainer(image),
        )
    )


def shown(mounts: Sequence[str]) -> list[str]:
    """The mounts for some directories: their parents, since the directories may not exist yet."""
    found: list[str] = []
    for path in mounts:
        above = dirname(normpath(path))
        place = normpath(path) if above in ("/", "") else above
        if set(place) & set(",: \t\n"):
            raise ConfigError(
                f"{path}: a directory with blanks, commas or colons cannot be shown in a container; "
                "choose another node_dir or shared_dir under [slurm]"
            )
        found.append(place)
    wide = [
        each for each in found if not any(each != o and each.startswith(f"{o}/") for o in found)
    ]
    return list(dict.fromkeys(wide))


def _for_enroot(image: str) -> str:
    """Enroot separates the registry by a hash sign, and takes a name that begins with a slash or a dot for a file."""
    name = image.removeprefix("docker://")
    if _SCHEME.match(name) or "#" in name or _is_file(name):
        return name
    registry, slash, rest = name.partition("/")
    is_registry = slash and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if is_registry else name


def _for_apptainer(image: str) -> str:
    if _SCHEME.match(image) or _is_file(image):
        return image
    return f"docker://{image.replace('#', '/', 1)}"


def _is_file(image: str) -> bool:
    return image.startswith(("/", "./", "../")) or image.endswith(_FILES)
