"""Checks that the interfaces configured for NCCL and Gloo exist; their own errors do not name the interface."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from ..system.atomic_files import names_in

_INFINIBAND = "/sys/class/infiniband"


def names() -> list[str]:
    """Returns the names of this node's interfaces."""
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def adapters(directory: str = _INFINIBAND) -> list[str]:
    """Returns the names of this node's InfiniBand adapters (`mlx5_0`)."""
    return sorted(names_in(directory))


def wrong(variables: Mapping[str, str], here: Sequence[str], *, nccl: bool) -> str | None:
    """Returns an error if a variable names no interface of this node, so that ranks cannot communicate; else None.

    Args:
        variables: The environment of the workers.
        here: Names of the node's interfaces.
        nccl: Whether ranks will communicate through NCCL. A rehearsal without GPUs does not use it.
    """
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if nccl else ("GLOO_SOCKET_IFNAME",)
    for name in names:
        fits = _gloo if name.startswith("GLOO") else _nccl
        wished = variables.get(name, "")
        if wished and here and not fits(wished, here):
            return (
                f"{name}={wished} fits no interface of this node (it has: {', '.join(here)}). Leave the variable out, "
                "and the interface that reaches the leader is taken; or name one that all nodes have"
            )
    return None


def doubtful(variables: Mapping[str, str], cards: Sequence[str]) -> str | None:
    """Returns a warning if NCCL is told to use an InfiniBand adapter that is missing: it would silently be slow.

    Args:
        variables: The environment of the workers.
        cards: Names of InfiniBand adapters.
    """
    wished = variables.get("NCCL_IB_HCA", "")
    if not wished or variables.get("NCCL_IB_DISABLE") == "1" or _nccl(wished, cards):
        return None
    return (
        f"NCCL_IB_HCA={wished} fits no InfiniBand adapter of this node (it has: {', '.join(cards) or 'none'}); NCCL "
        "will use plain TCP there"
    )


def _nccl(wished: str, there: Sequence[str]) -> bool:
    """Whether an NCCL list fits a name: it has prefixes, or after `=` whole names; `^` inverts it."""
    but = wished.startswith("^")
    whole = wished.lstrip("^").startswith("=")
    words = [word.partition(":")[0] for word in wished.lstrip("^=").split(",") if word]

    def named(name: str) -> bool:
        return any(name == word if whole else name.startswith(word) for word in words)

    return any(named(name) != but for name in there)


def _gloo(wished: str, there: Sequence[str]) -> bool:
    return all(word.strip() in there for word in wished.split(",") if word.strip())
