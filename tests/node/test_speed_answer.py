"""What is read of the program that multiplies matrices, beside what its Python prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.preflight.readiness import answer_of_speed


def test_lines_before_the_answer_are_no_fault_of_the_machine() -> None:
    answer = b'{"unit": "GFLOPS", "speeds": {"CPU": 40.0}}\n'
    found = {"unit": "GFLOPS", "speeds": {"CPU": 40.0}}
    assert answer_of_speed(answer, 0) == found
    assert answer_of_speed(b"module load: cuda/12\nwelcome\n" + answer, 0) == found


def test_without_an_answer_the_exit_code_is_told() -> None:
    for said in (b"", b"\n", b"killed\n", b"1\n", b"null\n"):
        assert answer_of_speed(said, -9) == {
            "error": "the program that multiplies matrices ended with -9"
        }


TORCH = """
class version:
    cuda = {built!r}

__version__ = "2.11"
bfloat16 = float16 = "half"

class Matrix:
    def __matmul__(self, other):
        if {fails!r}:
            raise RuntimeError({fails!r})

def randn(*size, device, dtype):
    return Matrix()

def device(kind, index):
    return f"{{kind}}:{{index}}"

class cuda:
    is_available = staticmethod(lambda: {gpus} > 0)
    device_count = staticmethod(lambda: {gpus})
    is_bf16_supported = staticmethod(lambda: True)
    synchronize = staticmethod(lambda device: None)
    empty_cache = staticmethod(lambda: None)
"""


def measured(where: Path, torch: str, *, driver: bool) -> dict[str, Any]:
    """What the program prints with such a torch, on a machine with or without NVIDIA's driver."""
    (where / "torch.py").write_text(torch)
    device = where / "nvidiactl"
    if driver:
        device.touch()
    program = (
        "import sys; from flowlite.node.preflight import speed\n"
        f"speed._DEVICE = {str(device)!r}\nspeed.main([])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{where}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_gpu_that_fails_to_multiply_is_named(tmp_path: Path) -> None:
    torch = TORCH.format(built="13.0", gpus=2, fails="CUDA error: uncorrectable ECC error")
    assert measured(tmp_path, torch, driver=True) == {
        "broken": "GPU 0: CUDA error: uncorrectable ECC error"
    }


def test_each_gpu_has_a_figure(tmp_path: Path) -> None:
    found = measured(tmp_path, TORCH.format(built="13.0", gpus=2, fails=""), driver=True)
    assert found["unit"] == "TFLOPS"
    assert set(found["speeds"]) == {"GPU 0", "GPU 1"}


def test_a_torch_that_cannot_be_imported_is_no_broken_gpu(tmp_path: Path) -> None:
    found = measured(tmp_path, "raise RuntimeError('numpy 1 was expected')", driver=True)
    assert found == {"error": "RuntimeError: numpy 1 was expected"}


@pytest.mark.parametrize(
    ("built", "driver", "key"),
    [("13.0", True, "error"), (None, True, "speeds"), ("13.0", False, "speeds")],
)
def test_gpus_that_torch_does_not_find_are_not_measured_as_processors(
    built: str | None, driver: bool, key: str, tmp_path: Path
) -> None:
    found = measured(tmp_path, TORCH.format(built=built, gpus=0, fails=""), driver=driver)
    assert key in found
    if key == "error":
        assert found["error"] == "torch 2.11 finds no GPU, and needs a driver for CUDA 13.0"
