"""Parses GPU strings (`h100`, `h100:8`, `a100-80gb:4`, `h100-80gb.sxm.8x`) into kind, memory, socket and count.

Standard library only, so that the supervisor and the adapters may use it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from flowlite.errors import SpecError
from flowlite.settings.suggest import nearest

MAX_PER_NODE = 64


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU model: its maker, and the memory sizes (GB) and sockets that it was sold with."""

    vendor: str
    memory_gb: tuple[int, ...]
    sockets: tuple[str, ...] = ()

    def nearest_size(self, gigabytes: float) -> int:
        """The memory size nearest to what a driver reports, which reserves some of it."""
        return min(self.memory_gb, key=lambda size: abs(size - gigabytes))


_PCIE = ("pcie",)

# Memory sizes from the makers' data sheets, and those that clouds state if they differ (B200: 192 and 180).
KINDS: dict[str, GpuKind] = {
    "gb300": GpuKind("nvidia", (279, 288), ("sxm",)),
    "gb200": GpuKind("nvidia", (186, 192), ("sxm",)),
    "b300": GpuKind("nvidia", (270, 288), ("sxm", "sxm6")),
    "b200": GpuKind("nvidia", (180, 192), ("sxm", "sxm6")),
    "gh200": GpuKind("nvidia", (96, 144), ("sxm",)),
    "h200": GpuKind("nvidia", (141,), ("sxm", "sxm5", "nvl")),
    "h100": GpuKind("nvidia", (80, 94, 96), ("sxm", "sxm5", "pcie", "nvl")),
    "h800": GpuKind("nvidia", (80,), ("sxm", "sxm5", "pcie")),
    "h20": GpuKind("nvidia", (96, 141), ("sxm", "sxm5")),
    "a100": GpuKind("nvidia", (40, 80), ("sxm", "sxm4", "pcie")),
    "a800": GpuKind("nvidia", (40, 80), ("sxm", "sxm4", "pcie")),
    "a40": GpuKind("nvidia", (48,), _PCIE),
    "a30": GpuKind("nvidia", (24,), _PCIE),
    "a16": GpuKind("nvidia", (16, 64), _PCIE),
    "a10": GpuKind("nvidia", (24,), _PCIE),
    "a10g": GpuKind("nvidia", (24,), _PCIE),
    "a2": GpuKind("nvidia", (16,), _PCIE),
    "l40": GpuKind("nvidia", (48,), _PCIE),
    "l40s": GpuKind("nvidia", (48,), _PCIE),
    "l20": GpuKind("nvidia", (48,), _PCIE),
    "l4": GpuKind("nvidia", (24,), _PCIE),
    "t4": GpuKind("nvidia", (16,), _PCIE),
    "t4g": GpuKind("nvidia", (16,), _PCIE),
    "v100": GpuKind("nvidia", (16, 32), ("sxm", "sxm2", "sxm3", "pcie")),
    "p100": GpuKind("nvidia", (12, 16), ("sxm", "sxm2", "pcie")),
    "p40": GpuKind("nvidia", (24,), _PCIE),
    "p4": GpuKind("nvidia", (8,), _PCIE),
    "k80": GpuKind("nvidia", (12, 24), _PCIE),
    "m60": GpuKind("nvidia", (8,), _PCIE),
    "rtxpro6000": GpuKind("nvidia", (96,), _PCIE),
    "rtx6000ada": GpuKind("nvidia", (48,), _PCIE),
    "rtx6000": GpuKind("nvidia", (24,), _PCIE),
    "rtx5090": GpuKind("nvidia", (32,), _PCIE),
    "rtx5080": GpuKind("nvidia", (16,), _PCIE),
    "rtx4090": GpuKind("nvidia", (24,), _PCIE),
    "rtx4080": GpuKind("nvidia", (16,), _PCIE),
    "rtx3090": GpuKind("nvidia", (24,), _PCIE),
    "rtx3080": GpuKind("nvidia", (10, 12), _PCIE),
    "rtx2080ti": GpuKind("nvidia", (11,), _PCIE),
    "a6000": GpuKind("nvidia", (48,), _PCIE),
    "a5000": GpuKind("nvidia", (24,), _PCIE),
    "a4000": GpuKind("nvidia", (16,), _PCIE),
    "mi355x": GpuKind("amd", (288,), ("oam",)),
    "mi350x": GpuKind("amd", (288,), ("oam",)),
    "mi325x": GpuKind("amd", (256,), ("oam",)),
    "mi300x": GpuKind("amd", (192,), ("oam",)),
    "mi300a": GpuKind("amd", (128,), ()),
    "mi250x": GpuKind("amd", (128,), ("oam",)),
    "mi250": GpuKind("amd", (128,), ("oam",)),
    "mi210": GpuKind("amd", (64,), _PCIE),
    "mi100": GpuKind("amd", (32,), _PCIE),
}


_FORM = re.compile(
    r"""(?P<kind>[a-z0-9]+)
        (?:-(?P<memory>\d+)gb)?
        (?:\.(?P<socket>[a-z]+\d?))?
        (?: :(?P<count>\d+) | \.(?P<times>\d+)x )?""",
    re.VERBOSE | re.ASCII,
)
_COMMON = (
    "b300", "b200", "h200", "h100", "a100", "a10g", "l40s", "l4", "t4", "v100", "rtx4090", "mi300x",
)  # fmt: skip
_EXAMPLES = "'h100', 'h100:8', 'a100-80gb:4' or 'h100-80gb.sxm.8x'"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs asked for on each node. `str()` gives the canonical form, which `parse` reads back to an equal value.

    Attributes:
        kind: Canonical model name, a key of `KINDS`.
        count: GPUs per node, at least 1.
        memory_gb: Memory of one GPU in GB, None for any.
        socket: "sxm", "pcie", "nvl" or "oam", perhaps with a generation ("sxm5"); None for any.
    """

    kind: str
    count: int = 1
    memory_gb: int | None = None
    socket: str | None = None

    def __post_init__(self) -> None:
        problem = _problem(self.kind, self.count, self.memory_gb, self.socket)
        if problem:
            raise SpecError(problem)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a GPU string, upper or lower case.

        Raises:
            SpecError: The text is not a GPU string, or no such GPU exists; the message has the most similar one.
        """
        word = text.strip().lower()
        match = _FORM.fullmatch(word)
        if match is None or match["kind"] not in KINDS:
            raise SpecError(f"{text!r} is not a GPU{_guess(word)}")
        memory = int(match["memory"]) if match["memory"] else None
        count = int(match["count"] or match["times"] or 1)
        try:
            return cls(match["kind"], count, memory, match["socket"])
        except SpecError as error:
            raise SpecError(f"{text!r}: {error}") from None

    @property
    def vendor(self) -> str:
        """The maker: "nvidia" or "amd"."""
        return KINDS[self.kind].vendor

    def __str__(self) -> str:
        memory = f"-{self.memory_gb}gb" if self.memory_gb else ""
        if self.socket:
            return f"{self.kind}{memory}.{self.socket}.{self.count}x"
        return f"{self.kind}{memory}" + (f":{self.count}" if self.count > 1 else "")


def kind_named(name: str) -> str:
    """The canonical kind ("h100") of a GPU from the name that a driver or an API has for it; "" if `KINDS` lacks it."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    joined = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, i + 4)}
    return max((kind for kind in KINDS if kind in joined), key=len, default="")


def _problem(kind: str, count: int, memory: int | None, socket: str | None) -> str:
    known = KINDS.get(kind)
    if known is None:
        return f"{kind!r} is not a GPU{_guess(kind)}"
    if count < 1:
        return f"the count must be at least 1, not {count}; leave `gpu` out for none"
    if count > MAX_PER_NODE:
        return (
            f"{count} GPUs in one machine do not exist (at most {MAX_PER_NODE}); "
            "the count is per node, `num_instances` asks for more nodes"
        )
    if memory is not None and memory not in known.memory_gb:
        sizes = " or ".join(f"{kind}-{size}gb" for size in known.memory_gb)
        return f"there is no {kind} with {memory} GB; there is {sizes}"
    if socket is not None and socket not in known.sockets:
        sockets = " or ".join(repr(s) for s in known.sockets) or "no socket in its name"
        return f"there is no {kind} with the socket {socket!r}; it has {sockets}"
    return ""


def _guess(word: str) -> str:
    """A suggestion for a wrong GPU string: its parts in the right order, or the most similar kinds."""
    if word in {"", "cpu", "none", "no", "0"}:
        return "; leave `gpu` out to run on CPUs"
    if word in {"gpu", "any", "nvidia", "amd", "cuda", "rocm"}:
        return f"; name the model, as in {_EXAMPLES}"
    for kind in sorted(KINDS, key=len, reverse=True):
        found = re.search(r"[^a-z0-9]*".join(kind), word)
        if found:
            rest = re.findall(r"[a-z0-9]+", f"{word[: found.start()]} {word[found.end() :]}")
            return f"; did you mean {str(_proposal(kind, rest))!r}?"
    tokens = re.findall(r"[a-z0-9]+", word)
    around = [kind for kind in KINDS for token in tokens if len(token) > 2 and token in kind]
    near = around or [name for t in ["".join(tokens), *tokens] for name in nearest(t, KINDS, 3)]
    if near:
        return f"; did you mean {' or '.join(repr(name) for name in dict.fromkeys(near[:3]))}?"
    return f"; give one of {', '.join(_COMMON)} …, as in {_EXAMPLES}"


def _proposal(kind: str, tokens: list[str]) -> GpuRequest:
    """A request of that kind with as many of the other parts as are valid for it."""
    request = GpuRequest(kind)
    for token in tokens:
        number = re.fullmatch(r"x?(\d{1,4})(x|gb|g)?", token)
        change: dict[str, int | str] = {"socket": token}
        if number:
            size = int(number[1])
            bare = number[2] is None and not token.startswith("x")
            is_memory = number[2] in {"gb", "g"} or (bare and size > 16)
            change = {"memory_gb" if is_memory else "count": size}
        with suppress(SpecError):
            request = replace(request, **change)  # type: ignore[arg-type]
    return request
