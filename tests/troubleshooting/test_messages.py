"""Failures that many people meet: what libraries say, and what flowlite says to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.api.client import Flow as Client
from flowlite.diagnosis.advice import SYMPTOMS, advice, recognised
from tests.cli.conftest import Flow, flow  # noqa: F401

app = FlowApp()

SAID = {
    "gpu-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity "
    "of 39.39 GiB of which 12.19 MiB is free.",
    "gpu-access": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "gpu-ordinal": "torch.AcceleratorError: CUDA error: invalid device ordinal\nGPU device may be out of range",
    "loader-memory": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
    "shared-memory": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.",
    "horovod-missing": "AssertionError: Horovod is not installed",
    "nccl-versions": "NCCL WARN NCCL version mismatch between ranks",
    "nccl-system": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
    "nccl-cuda": "NCCL error: unhandled cuda error, NCCL version 2.21.5",
    "init-timeout": "RuntimeError: Timeout in distributed init",
    "collective-timeout": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
    "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600011 milliseconds",
    "port-taken": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "no-cuda": "RuntimeError: No CUDA GPUs are available",
    "recomputed": "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
    "tensors have different metadata than during the forward pass.",
    "adamw-8bit": "ValueError: FSDP2 not compatible with adamw_8bit",
    "sharded-checkpoint": "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory ./out",
    "file-missing": "FileNotFoundError: [Errno 2] No such file or directory: '/data/00000.tar'",
    "module-missing": "ModuleNotFoundError: No module named 'webdataset'",
    "disk-full": "OSError: [Errno 28] No space left on device",
}
"""What libraries say, by the name of the symptom."""


@pytest.mark.parametrize("name", [symptom.name for symptom in SYMPTOMS])
def test_what_libraries_say_is_recognised(name: str) -> None:
    first, told = recognised([SAID[name]])[0]
    assert first.name == name
    assert told == advice([SAID[name]])[0]
    assert "{" not in told


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: no such layer",
        "NCCL INFO Connected all rings",
        "loss 0.1, timeout 600, memory 3 GB",
        "[Node 0] NCCL: Connected to all peers successfully",
    ],
)
def test_what_is_none_of_them_gets_no_advice(text: str) -> None:
    assert advice([text]) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpu-memory", "gradient checkpointing (--grad-checkpointing"),
        ("gpu-access", "-e CUDA_LAUNCH_BLOCKING=1"),
        ("gpu-ordinal", "--gpu h100:2 with --processes-per-node 2"),
        ("nccl-system", "-e NCCL_DEBUG=INFO -e NCCL_DEBUG_SUBSYS=INIT,NET"),
        ("nccl-cuda", "-e NCCL_P2P_DISABLE=1"),
        ("init-timeout", "AXOLOTL_NCCL_TIMEOUT"),
        ("collective-timeout", "`flow doctor` names it"),
        ("no-cuda", "--gpu"),
        ("adamw-8bit", "adamw_torch_8bit"),
        ("sharded-checkpoint", "axolotl merge-sharded-fsdp-weights"),
        ("horovod-missing", 'distributed_mode="mpi"'),
        ("module-missing", "a package of your project in src/, write --env PYTHONPATH=src"),
    ],
)
def test_the_advice_has_the_way_out(name: str, told: str) -> None:
    assert told in advice([SAID[name]])[0]


@app.function(num_instances=2)
def says(name: str) -> None:
    """Rank 1 fails as a library would."""
    import os

    if os.environ["RANK"] == "1":
        raise RuntimeError(SAID[name])


def test_a_failed_rank_is_told_with_what_to_do(flow_home: Path) -> None:
    error = says.spawn("gpu-memory").exception(60)
    assert isinstance(error, RuntimeError)
    (note,) = [note for note in error.__notes__ if "gradient checkpointing" in note]
    assert note.startswith("rank 1 on node 1: ")


def test_a_command_is_told_by_its_last_words(flow: Flow) -> None:  # noqa: F811
    script = f'echo "{SAID["horovod-missing"]}" >&2; exit 3'
    ran = flow("run", "--no-logs", "-N", "2", "--name", "old", "--", "sh", "-c", script)
    assert ran.code == 1
    assert "Horovod is not on this node. Without --horovod the run uses torch's own" in ran.err
    # And again for whoever asks later why it ended.
    after = flow("doctor", "old")
    assert after.code == 3
    assert "Horovod is not on this node" in after.err
    assert "has ended (failed)" in after.err


@app.function
def recomputes_something_else() -> None:
    """What QLoRA under ZeRO 3 does with `use_reentrant: False`."""
    import torch
    from torch.utils.checkpoint import checkpoint

    calls: list[int] = []

    def part(x: Any) -> Any:
        calls.append(1)
        return (x.repeat(len(calls), 1) ** 2).exp()

    checkpoint(part, torch.ones(2, 2, requires_grad=True), use_reentrant=False).sum().backward()


def test_activations_that_come_out_otherwise_the_second_time(flow_home: Path) -> None:
    pytest.importorskip("torch")
    error = recomputes_something_else.spawn().exception(90)
    assert type(error).__name__ in ("CheckpointError", "RemoteError")
    assert any("set use_reentrant: true, or use FSDP" in note for note in error.__notes__)


def test_advice_does_not_hide_the_other_failures(flow_home: Path) -> None:
    error = says.options(processes_per_node=2).spawn("nccl-cuda").exception(60)
    assert error is not None
    assert Client().list_tasks()[0].status == "failed"
    assert any("NCCL failed in CUDA" in note for note in error.__notes__)
