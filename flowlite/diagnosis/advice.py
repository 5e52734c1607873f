"""Advice on common failures, which are recognised by the messages of libraries.

Pure: texts in, advice out. docs/troubleshooting.md has a row for each failure, with a test that provokes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from flowlite.node.quick_dataclass import dataclass

_MOST = 2


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One known failure.

    Attributes:
        name: Identifies it in tests and JSON.
        pattern: Matches the messages of libraries, in capitals or not. It is compiled when a task has failed.
        advice: What to do; `{match}` stands for the first group of the pattern.
    """

    name: str
    pattern: str
    advice: str


_DEBUG = "-e NCCL_DEBUG=INFO -e NCCL_DEBUG_SUBSYS=INIT,NET"

# The more specific ones come first: if several match, the first two are shown.
SYMPTOMS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "gpu-memory",
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the model and its batch do not fit into the memory of the GPU. Make the batch per GPU smaller; save memory by "
        "gradient checkpointing (--grad-checkpointing, gradient_checkpointing), sharding (--fsdp, DeepSpeed ZeRO), and "
        "for contrastive losses --local-loss --gather-with-grad. That GPUs are of one size on all nodes, and empty, "
        "was looked at before the start",
    ),
    KnownFailure(
        "gpu-access",
        r"an illegal memory access was encountered|device-side assert triggered",
        "a kernel used memory that is not its own, mostly through an index out of range: a label, or a token id beyond "
        "the vocabulary. CUDA reports it at a later line: -e CUDA_LAUNCH_BLOCKING=1 shows the line itself, and so does "
        "a run on the CPU",
    ),
    KnownFailure(
        "gpu-ordinal",
        r"invalid device ordinal|Duplicate GPU detected",
        "a node has more processes than GPUs, or a process chose one that it does not have. Ask for a GPU for each "
        "process (--gpu h100:2 with --processes-per-node 2). Processes that share one choose it by local_rank % "
        "torch.cuda.device_count(), and use gloo, since NCCL takes one rank for each GPU",
    ),
    KnownFailure(
        "loader-memory",
        r"DataLoader worker .*killed by signal: Killed",
        "a process that loads data was killed, most likely because the machine ran out of memory: use fewer loader "
        "processes (num_workers, --workers) or less prefetching; `flow top` shows the memory of every node",
    ),
    KnownFailure(
        "shared-memory",
        r"Bus error|insufficient shared memory|SIGBUS|No space left on device: '?/dev/shm",
        "shared memory (/dev/shm) is full: enlarge it (docker run --shm-size=16G, mount -o remount,size=16G /dev/shm), "
        "or use fewer loader processes",
    ),
    KnownFailure(
        "horovod-missing",
        r"Horovod is not installed|No module named '?horovod",
        "Horovod is not on this node. Without --horovod the run uses torch's own process group, which needs nothing; "
        'for Horovod itself install it there, or give an image= that has it, and use distributed_mode="mpi"',
    ),
    KnownFailure(
        "nccl-versions",
        r"NCCL.{0,40}version.{0,20}mismatch|mismatched? NCCL",
        "nodes have different versions of NCCL: use the same torch on all of them (dependencies=[…], or image=)",
    ),
    KnownFailure(
        "nccl-system",
        r"unhandled system error|ncclSystemError",
        "NCCL was refused something by the system: an interface, InfiniBand or shared memory. Which one it was, it "
        "says "
        f"when run again with {_DEBUG}; look at NCCL_SOCKET_IFNAME, NCCL_IB_HCA and the size of /dev/shm on that node, "
        "and at `flow doctor` while it runs. If InfiniBand is the cause, -e NCCL_IB_DISABLE=1 goes without",
    ),
    KnownFailure(
        "nccl-cuda",
        r"unhandled cuda (error|failure)|ncclUnhandledCudaError",
        "NCCL failed in CUDA: often GPUs that cannot reach each other directly (run again with -e NCCL_P2P_DISABLE=1), "
        "a GPU that another process filled, or a driver too old for this torch (nvidia-smi through `flow ssh --node "
        "all`). -e NCCL_DEBUG=INFO says which call it was",
    ),
    KnownFailure(
        "init-timeout",
        r"Timeout in distributed init|waiting for clients\. \d+/\d+ clients|connectFullMesh failed|"
        r"DistStoreError|The client socket has timed out",
        "a rank waited for the others in init_process_group. All were started together, and the master port and the "
        "links were tried before, so one of them came late: raise the timeout (init_process_group(timeout=…), "
        "AXOLOTL_NCCL_TIMEOUT), or open the group before loading the model; `flow doctor` names the late one while "
        "it hangs",
    ),
    KnownFailure(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|collective operation timed out|NCCL.{0,60}timed? ?out|"
        r"Timed out waiting \d+ms for (send|recv) operation|Connection timeout to \d",
        "a rank did not come to a collective that the others waited in. `flow doctor` names it and shows where it "
        "stands, "
        f"while the gang hangs; with {_DEBUG} NCCL says what it was doing",
    ),
    KnownFailure(
        "port-taken",
        r"EADDRINUSE|address already in use",
        "a port is taken. MASTER_PORT was free just before the start: does the command start one launcher per worker "
        "(then use --manual), or a server of its own on that port?",
    ),
    KnownFailure(
        "no-cuda",
        r"No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA enabled|"
        r"CUDA driver version is insufficient|Attempting to deserialize object on a CUDA device|no CUDA-capable device",
        "torch sees no GPU there. Ask for GPUs (--gpu, gpu=), which are counted before the start; look whether torch "
        "is a build with CUDA (python -c 'import torch; print(torch.version.cuda)') and whether nvidia-smi works on "
        "that node",
    ),
    KnownFailure(
        "recomputed",
        r"Recomputed values .*different metadata",
        "activation checkpointing recomputed something else than at first. QLoRA under ZeRO 3 does that with "
        "use_reentrant: false: set use_reentrant: true, or use FSDP; else look for randomness or state in the "
        "checkpointed part",
    ),
    KnownFailure(
        "adamw-8bit",
        r"FSDP2? .{0,20}(not|in)\s?compatible with .*8.?bit|8.?bit.{0,40}not compatible with FSDP",
        "this optimizer of bitsandbytes cannot work on sharded parameters: use adamw_torch_8bit (optimizer: "
        "adamw_torch_8bit), or another one in full precision",
    ),
    KnownFailure(
        "sharded-checkpoint",
        r"merge-(sharded-)?(fsdp-)?weights|\.distcp|__\d+_\d+\.distcp|pytorch_model_fsdp|"
        r"no file named (pytorch_model|model)\S*.{0,120}found in directory",
        "a checkpoint of FSDP is a directory of shards, which must be merged before it loads as a model: "
        "`axolotl merge-sharded-fsdp-weights CONFIG`, or `accelerate merge-weights DIR OUT`. Every node writes its own "
        "shards: keep them in a volume that all nodes share, or with checkpoint=, or those of other nodes are missing",
    ),
    KnownFailure(
        "file-missing",
        r"No such file or directory: '?([^'\n]+)",
        "{match} is not there on that node. Nodes elsewhere have the source of the project, volumes= and mounts=, and "
        "no other file of this machine: bring it there with one of these",
    ),
    KnownFailure(
        "module-missing",
        r"No module named '?([\w.]+)",
        "{match} is not installed for the Python of that node. If it is a package of your project in src/, write --env "
        "PYTHONPATH=src, or --setup 'pip install -e .'; for any other, give dependencies=[…] or an image=, or install "
        "it there",
    ),
    KnownFailure(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "a disk is full, or can hold no more files (`df -i`); while the task runs, `flow doctor` shows which, and "
        "`flow ssh` gets you there",
    ),
)


def advice(texts: Iterable[str], most: int = _MOST) -> list[str]:
    """Advice on the failures that these texts show, the most specific first; empty if none is known."""
    return [told for _, told in recognised(texts)][:most]


def recognised(texts: Iterable[str]) -> list[tuple[KnownFailure, str]]:
    """The symptoms that these texts show, each with its advice."""
    whole = "\n".join(texts)
    found = []
    for symptom in SYMPTOMS:
        match = re.search(symptom.pattern, whole, re.IGNORECASE)
        if match is not None:
            word = match[1] if match.lastindex else ""
            found.append((symptom, symptom.advice.replace("{match}", word or "")))
    if found and found[0][0].name == "horovod-missing":
        found = [each for each in found if each[0].name != "module-missing"]
    return found
