"""The machine that is measured: what it must have, its GPUs as `nvidia-smi` shows them, and commands that run on it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import ROOT

REQUIREMENTS = ("torch", "cloudpickle", "pydantic", "typer")
"""The packages without which nothing can be measured. The rest of flowlite's requirements is for other providers."""
PYTHON = Path(sys.executable).name
"""As it is found on the PATH of the commands: some machines have no `python`, only `python3`."""
PROGRAMS = Path(__file__).resolve().parent / "programs"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ROOT / "build" / "gpu-packages" / _VERSION / "site-packages"
"""Where `make gpu-packages` puts requirements for a machine with this Python that cannot install any.
A folder of another name would count as a part of the project, and travel with a function."""
TOLERANCE_MB = 64


class Failed(Exception):
    """A check has not come out as it should; the text says how it came out."""


class Skipped(Exception):
    """A check cannot be made here; the text says what is missing."""


@dataclass
class Ran:
    """One run of a command: its exit code, its output with its errors, and how long it took."""

    code: int
    text: str
    seconds: float

    def demand(self, *parts: str, code: int | None = 0) -> Ran:
        """Returns itself.

        Raises:
            Failed: Another exit code (None: any but 0), or a part is not in the output.
        """
        wrong = self.code == 0 if code is None else self.code != code
        missing = [part for part in parts if part not in self.text]
        if wrong or missing:
            lacks = f", without {missing}" if missing else ""
            raise Failed(f"exit code {self.code}{lacks}: ...{self.text[-1500:]}")
        return self


@dataclass
class Machine:
    """Where the checks run.

    Attributes:
        device: The device of torch: "cuda", or "cpu" in a rehearsal.
        kind: The GPUs' kind, as in `--gpu`.
        count: How many there are.
        home: FLOW_HOME.
        until: `time.monotonic()` at which all has to be over.
    """

    device: str
    kind: str
    count: int
    home: Path
    until: float
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def rehearsed(self) -> bool:
        return self.device == "cpu"

    def environment(self) -> dict[str, str]:
        """The environment of all commands."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        python_path = os.pathsep.join([str(ROOT), str(self.home / "packages"), str(PACKAGES)])
        here = {"FLOW_HOME": str(self.home), "FLOW_SYNC": "false", "PYTHONPATH": python_path}
        return {**kept, **here, "PATH": path, "GPU_CHECK_DEVICE": self.device}

    def run(self, *argv: str | Path, seconds: float = 90.0) -> Ran:
        """Runs a command to its end.

        Raises:
            Failed: It took too long.
        """
        with self.started(*argv) as (child, began):
            return self.end(child, began, seconds)

    def end(self, child: subprocess.Popen[str], began: float, seconds: float = 90.0) -> Ran:
        """Waits for the end of a command that was started."""
        left = min(seconds, max(1.0, self.until - time.monotonic()))
        try:
            text, _ = child.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
            text = said if isinstance(said, str) else said.decode(errors="replace")
            raise Failed(f"not over after {left:.0f} s: ...{text[-1500:]}") from None
        return Ran(child.returncode, text, time.monotonic() - began)

    @contextmanager
    def started(self, *argv: str | Path) -> Iterator[tuple[subprocess.Popen[str], float]]:
        """A command that runs meanwhile, with the time at which it was started."""
        began = time.monotonic()
        child = subprocess.Popen(
            [str(each) for each in argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self.environment(),
            cwd=self.home,
        )
        try:
            yield child, began
        finally:
            if child.poll() is None:
                child.terminate()
                child.communicate()

    def flow(self, *words: str | Path) -> list[str | Path]:
        """A command of flowlite."""
        return [sys.executable, "-m", "flowlite.cli", *words]

    def flow_run(
        self, program: str, *words: str | Path, options: tuple[str, ...] = ()
    ) -> list[str | Path]:
        """`flow run` of one of the programs on one GPU."""
        gpu = ("--gpu", f"{self.kind}:1")
        return self.flow("run", *gpu, *options, "--", PYTHON, PROGRAMS / program, *words)

    def wait(
        self,
        what: str,
        condition: Callable[[], bool],
        seconds: float = 60.0,
        child: subprocess.Popen[str] | None = None,
    ) -> float:
        """Waits for a condition. Returns how long that took.

        Raises:
            Failed: It did not become true, or the child that was to make it true has ended.
        """
        began = time.monotonic()
        while not condition():
            if child is not None and child.poll() is not None:
                raise Failed(f"{what}: ...{self.end(child, began).text[-1500:]}")
            if time.monotonic() > min(began + seconds, self.until):
                raise Failed(f"{what}: not within {time.monotonic() - began:.0f} s")
            time.sleep(0.05)
        return time.monotonic() - began

    def used_mb(self) -> list[int]:
        """The memory in use on each GPU, as nvidia-smi shows it."""
        return [int(each) for each in _ask("memory.used")]

    def wait_until_empty(self, before: list[int]) -> float:
        """Waits until the GPUs hold no more than before. Returns how long that took."""

        def empty() -> bool:
            both = zip(self.used_mb(), before, strict=True)
            return all(now <= then + TOLERANCE_MB for now, then in both)

        return self.wait(f"memory of the GPUs is not back at {before} MB", empty, 30.0)


def _note_entry_points(directory: Path) -> None:
    """Writes where the providers of this checkout are, which an installation would have written."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = directory / f"{project['name']}-{project['version']}.dist-info"
    made.mkdir(parents=True)
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (made / "METADATA").write_text(header)
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")


def why_not(*, rehearse: bool) -> str:
    """Returns in one line why nothing can be measured here, and what to do; "" if it can."""
    missing = [name for name in REQUIREMENTS if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"{sys.executable} lacks {', '.join(missing)}: pip install {' '.join(missing)}, or run `make gpu-packages` "
            f"where there is a package index and bring build/gpu-packages along (torch has to be here)"
        )
    if shutil.which("nvidia-smi") is None:
        return "there is no nvidia-smi on the PATH, so this machine has no NVIDIA driver"
    if not _kinds():
        return "nvidia-smi shows no GPU of a known kind: flowlite/spec/gpu.py has the kinds"
    import torch

    if not rehearse and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU: it was built for CUDA {torch.version.cuda}"
    return ""


def facts() -> Mapping[str, str]:
    """What the machine is, for the table."""
    import torch

    return {
        "gpus": ", ".join(_ask("name")),
        "driver": ", ".join(sorted(set(_ask("driver_version")))),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cores": str(os.cpu_count()),
    }


@contextmanager
def machine(seconds: float, *, rehearse: bool) -> Iterator[Machine]:
    """The machine, with a FLOW_HOME that is removed afterwards."""
    kinds = _kinds()
    home = Path(tempfile.mkdtemp(prefix="flow-gpu-"))
    (home / "flow.toml").write_text("")
    _note_entry_points(home / "packages")
    made = Machine(
        "cpu" if rehearse else "cuda", kinds[0], len(kinds), home, time.monotonic() + seconds
    )
    try:
        yield made
    finally:
        subprocess.run(
            [str(each) for each in made.flow("gc", "--warm")],
            env=made.environment(),
            cwd=home,
            check=False,
            capture_output=True,
            timeout=60,
        )
        shutil.rmtree(home, ignore_errors=True)


def _kinds() -> list[str]:
    from provider_adapters.local.gpus import discover

    return [each.kind for each in discover() if each.kind]


def _ask(field_name: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field_name}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
