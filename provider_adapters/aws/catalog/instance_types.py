"""Instance types: what EC2 says of each, and whether it meets a task's requirements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.spec.gpu import KINDS, GpuRequest

_FAMILY = re.compile(r"([a-z]+)(\d+)?")
# Names of GPUs in the driver and the API that differ from those in GPU strings.
_NAMES = {"rtxproserver6000": "rtxpro6000"}
_GENERAL = frozenset({"c", "m", "r"})
_LEAST_CORES, _LEAST_MEMORY = 2.0, 4.0
PLAIN_CARD: tuple[str, ...] = ("interface",)
EFA_CARD: tuple[str, ...] = ("interface", "efa", "efa-only")


@dataclass(frozen=True, slots=True)
class Machine:
    """One instance type.

    Attributes:
        gpu: Canonical kind; "" without a GPU, or with one that no GPU string names.
        gpus: Number of whole GPUs.
        gpu_memory_gb: Memory of one GPU, as in a GPU string.
        accelerated: Whether it has any accelerator.
        arch: "x86_64" or "arm64".
        cards: For each network card, the kinds of interface it accepts; () if EC2 does not say which cards accept EFA.
        efa: Maximum number of EFA interfaces.
        spot: Whether it is available on spot.
    """

    name: str
    vcpus: int
    memory_gb: float
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gb: int = 0
    accelerated: bool = False
    arch: str = "x86_64"
    cards: tuple[tuple[str, ...], ...] = ()
    efa: int = 0
    spot: bool = True
    usual: bool = True

    @property
    def family(self) -> str:
        """The letters before the number: "p" of p5en.48xlarge."""
        found = _FAMILY.match(self.name)
        return found[1] if found else self.name

    @property
    def generation(self) -> int:
        """The number after the letters: 5 of p5en.48xlarge."""
        found = _FAMILY.match(self.name)
        return int(found[2] or 0) if found else 0

    @property
    def gpu_text(self) -> str:
        """Its GPUs as a GPU string: `h100:8`."""
        return f"{self.gpu}-{self.gpu_memory_gb}gb:{self.gpus}" if self.gpu else ""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Rebuilds from `to_json`."""
        return cls(**{**data, "cards": tuple(tuple(card) for card in data["cards"])})

    @classmethod
    def from_api(cls, told: Mapping[str, Any]) -> Machine:
        """Reads an entry of DescribeInstanceTypes."""
        kind, count, memory = _gpus(told.get("GpuInfo", {}).get("Gpus", ()))
        network = told.get("NetworkInfo", {})
        efa = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))
        efa = efa if network.get("EfaSupported") else 0
        others = ("GpuInfo", "FpgaInfo", "InferenceAcceleratorInfo", "NeuronInfo")
        arches = told.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
        return cls(
            name=str(told["InstanceType"]),
            vcpus=int(told["VCpuInfo"]["DefaultVCpus"]),
            memory_gb=float(told["MemoryInfo"]["SizeInMiB"]) / 1024,
            gpu=kind,
            gpus=count,
            gpu_memory_gb=memory,
            accelerated=any(told.get(name) for name in others),
            arch="x86_64" if "x86_64" in arches else str(arches[0]),
            cards=_cards(network.get("NetworkCards", ()), efa),
            efa=efa,
            spot="spot" in told.get("SupportedUsageClasses", ("on-demand", "spot")),
            usual=not told.get("BareMetal") and not told.get("BurstablePerformanceSupported"),
        )


def _cards(told: Iterable[Mapping[str, Any]], efa: int) -> tuple[tuple[str, ...], ...]:
    """The kinds of interface that each network card accepts.

    `NetworkCards[].InterfaceTypes` has them, but botocore drops the member before version 1.43.90, which other packages
    (s3fs, aiobotocore) hold back. Without it the number of EFA interfaces decides: all cards accept EFA, or all but the
    first, as on p6-b300. With any other number it is not known.
    """
    cards = sorted(told, key=lambda card: int(card["NetworkCardIndex"]))
    if all("InterfaceTypes" in card for card in cards):
        return tuple(tuple(card["InterfaceTypes"]) for card in cards)
    if efa == 0:
        return (PLAIN_CARD,) * len(cards)
    if efa == len(cards):
        return (EFA_CARD,) * len(cards)
    if efa == len(cards) - 1:
        return (PLAIN_CARD, *(EFA_CARD,) * efa)
    return ()


@dataclass(frozen=True, slots=True)
class MachineRequirements:
    """The requirements for each machine of a gang."""

    gpu: GpuRequest | None = None
    cpu: float | None = None
    memory: float | None = None
    efa: bool = False
    link: str = ""
    spot: bool = False

    def misfit(self, machine: Machine) -> str:
        """Why a machine does not meet them; "" if it does."""
        return next((why for why in self._reasons(machine) if why), "")

    def _reasons(self, machine: Machine) -> Iterable[str]:
        if self.gpu is not None:
            yield _gpu_misfit(self.gpu, machine)
        else:
            yield "it has accelerators, which nobody asked for" if machine.accelerated else ""
            plain = machine.usual and machine.arch == "x86_64" and machine.family in _GENERAL
            yield "" if plain else "it is no general machine with x86-64 cores of its own"
        cpu = self.cpu or (0.0 if self.gpu else _LEAST_CORES)
        yield f"it has {machine.vcpus} vCPUs" if machine.vcpus < cpu else ""
        memory = self.memory or (0.0 if self.gpu else _LEAST_MEMORY)
        # Requests are in units of 10⁹ bytes, EC2's answers in 2³⁰.
        enough = machine.memory_gb * 2**30 / 1e9 >= memory or machine.memory_gb >= memory
        yield "" if enough else f"it has {machine.memory_gb:g} GB of memory"
        yield "it has no EFA" if self.efa and not machine.efa else ""
        yield _link_misfit(self.link, machine)
        yield "it is not sold on spot" if self.spot and not machine.spot else ""

    def words(self) -> str:
        """The requirements as a text for the user."""
        parts = [f"{self.gpu}" if self.gpu else "no GPU"]
        parts += [f"{self.cpu:g} cores"] if self.cpu else []
        parts += [f"{self.memory:g} GB of memory"] if self.memory else []
        parts += ["EFA"] if self.efa else []
        parts += [self.link] if self.link else []
        return ", ".join(parts)


def by_size(machines: Iterable[Machine]) -> list[Machine]:
    """The smallest first; of equal sizes the newest first."""
    return sorted(machines, key=lambda m: (m.gpus, m.vcpus, m.memory_gb, -m.generation, m.name))


def nearest(machines: Iterable[Machine], wanted: MachineRequirements) -> list[Machine]:
    """The machines closest to the requirements: the same GPU in other numbers, else similar memory on other GPUs."""
    request = wanted.gpu
    listed = list(machines)
    if request is None:
        return [m for m in reversed(by_size(listed)) if not m.accelerated][:3]
    same = [m for m in listed if m.gpu == request.kind]
    size = request.memory_gb or max(KINDS[request.kind].memory_gb)
    others = [m for m in listed if m.gpu and m.gpu != request.kind and m.gpus == request.count]
    same.sort(key=lambda m: (abs(m.gpus - request.count), m.vcpus))
    others.sort(key=lambda m: (abs(m.gpu_memory_gb - size), -m.generation, m.vcpus))
    once = {(m.gpu, m.gpu_memory_gb): m for m in reversed(others)}
    return [*same[:3], *sorted(once.values(), key=others.index)[:3]]


def _gpus(told: Iterable[Mapping[str, Any]]) -> tuple[str, int, int]:
    gpus = list(told)
    if len(gpus) != 1 or float(gpus[0].get("GpuPartitionSize", 1.0)) < 1.0:
        return "", 0, 0
    gpu = gpus[0]
    name = re.sub(r"[^a-z0-9]", "", str(gpu["Name"]).lower())
    kind = _NAMES.get(name, name)
    if kind not in KINDS:
        return "", 0, 0
    size = KINDS[kind].nearest_size(float(gpu["MemoryInfo"]["SizeInMiB"]) / 1024)
    return kind, int(gpu["Count"]), size


def _gpu_misfit(request: GpuRequest, machine: Machine) -> str:
    if machine.gpu != request.kind:
        return f"it has {f'{machine.gpus} × {machine.gpu}' if machine.gpu else 'no such GPU'}"
    if request.memory_gb not in (None, machine.gpu_memory_gb):
        return f"its GPUs have {machine.gpu_memory_gb} GB each"
    if machine.gpus != request.count:
        return f"it has {machine.gpus} of them"
    socket = "sxm" if machine.family == "p" else "pcie"
    if request.socket is not None and not request.socket.startswith(socket):
        return f"its GPUs are {socket.upper()}"
    return ""


def _link_misfit(link: str, machine: Machine) -> str:
    if not link:
        return ""
    has = ("SXM", "NVLink", "NVSwitch") if machine.family == "p" else ("PCIe",)
    return "" if link.startswith(has) else f"its GPUs are linked by {has[-1]}, not by {link}"
