"""The checks of `make gpu`, in the order in which they run. Each returns the rows of the table that it fills."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.machine import PROGRAMS, PYTHON, TOLERANCE_MB, Failed, Machine, Skipped
from benchmarks.measure import ROOT
from benchmarks.table import Row, seconds

_MARK = "pytest.mark.gpu"


def untouched_before_the_fork(here: Machine) -> list[Row]:
    """CUDA is not initialised before the fork; its first call takes no longer than in a new Python."""
    done = here.run(sys.executable, PROGRAMS / "functions.py", here.kind, "first").demand("found {")
    found = json.loads(done.text.partition("found ")[2].splitlines()[0])
    forked, fresh = found["fork"], found["spawn"]
    if not forked["untouched"]:
        raise Failed("CUDA was initialised in the fork server")
    return [
        Row("CUDA before the fork", "untouched", reached=True, to_reach="untouched"),
        Row(
            "first call of CUDA in a forked rank",
            seconds(forked["seconds"]),
            f"in a new Python {seconds(fresh['seconds'])}",
            forked["seconds"] / max(fresh["seconds"], 1e-9),
        ),
        Row(
            "a call on warm nodes with torch and CUDA",
            seconds(forked["call"]),
            f"in a new Python {seconds(fresh['call'])}",
            forked["call"] / fresh["call"],
        ),
    ]


def nccl_with_one_rank(here: Machine) -> list[Row]:
    """DDP with nccl, 1 x 1."""
    wanted = "rank 0 of 1 trained with " + ("gloo" if here.rehearsed else "nccl")
    return [_trained("DDP with nccl, 1 x 1", here, "nccl", 1, wanted)]


def gloo_with_two_ranks(here: Machine) -> list[Row]:
    """DDP with gloo, two ranks on one GPU."""
    return [_trained("DDP with gloo, 2 ranks on one GPU", here, "gloo", 2, "rank 1 of 2 trained")]


def _trained(what: str, here: Machine, backend: str, ranks: int, wanted: str) -> Row:
    options = ("--processes-per-node", str(ranks))
    done = here.run(*here.flow_run("ddp.py", backend, options=options)).demand(wanted)
    return Row(what, seconds(done.seconds), to_reach="trains", reached=True)


def beside_torchrun(here: Machine) -> list[Row]:
    """A script's cold start and second warm run, beside torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = f"--master-port={probe.getsockname()[1]}"
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", port)
    peer = here.run(*launch, PROGRAMS / "ddp.py", "gloo").demand("rank 1 of 2 trained")
    options = ("--processes-per-node", "2", "--keep-warm", "5m")
    taken = [
        here.run(*here.flow_run("ddp.py", "gloo", options=options)).demand("rank 1 of 2 trained")
        for _ in range(2)
    ]
    beside = f"torchrun {seconds(peer.seconds)}"
    return [
        Row(
            f"20 DDP steps, 2 ranks: {name}",
            seconds(ran.seconds),
            beside,
            ran.seconds / peer.seconds,
        )
        for name, ran in zip(("cold start", "second run, kept warm"), taken, strict=True)
    ]


def shared_out_and_given_back(here: Machine) -> list[Row]:
    """While one task has all GPUs another one waits, and gets them when the first has ended."""
    gpus, first, second = f"{here.kind}:{here.count}", here.home / "first", here.home / "second"
    hold = (PYTHON, PROGRAMS / "misbehave.py", "hold")
    options = ("--gpu", gpus, "--processes-per-node", "1")
    one = here.flow("run", *options, "--name", "first", "--", *hold, first, "6")
    two = here.flow("run", *options, "--name", "second", "--", *hold, second, "0")
    with here.started(*one) as (holder, began):
        here.wait("the first task does not run", first.exists, child=holder)
        with here.started(*two) as (waiter, second_began):
            here.end(holder, began).demand()
            done = here.end(waiter, second_began).demand()
    _, seen, ran_at = second.read_text().split()
    if float(ran_at) < float(Path(f"{first}.end").read_text()):
        raise Failed("the second task ran while the first had all GPUs")
    wanted = ",".join(map(str, range(here.count)))
    if not os.environ.get("CUDA_VISIBLE_DEVICES") and seen not in (wanted, "None"):
        raise Failed(f"the second task sees the GPUs {seen}, and not {wanted}")
    what = f"all {here.count} GPUs, wanted by two tasks"
    return [
        Row(what, f"the second waited, {seconds(done.seconds)}", to_reach="waits", reached=True)
    ]


def memory_after_a_kill(here: Machine) -> list[Row]:
    """The GPU's memory is free after a kill -9; `flow top` shows before what nvidia-smi shows."""
    before, note = here.used_mb(), here.home / "held"
    options = ("--name", "killed")
    with here.started(*here.flow_run("misbehave.py", "hold", note, options=options)) as (child, at):
        here.wait("the task does not run", note.exists, child=child)
        held = here.used_mb()
        if not here.rehearsed and max(held) < max(before) + 2048:
            raise Failed(f"nvidia-smi shows {held} MB in use with 2 GB held, {before} before")
        shown = here.run(*here.flow("top", "killed", "--json")).demand()
        gpus = [gpu for node in json.loads(shown.text)["data"]["nodes"] for gpu in node["gpus"]]
        top = [gpu["memory_used"] // 2**20 for gpu in gpus]
        if not top or min(abs(each - top[0]) for each in held) > TOLERANCE_MB:
            raise Failed(f"flow top shows {top} MB, nvidia-smi {held}")
        os.kill(int(note.read_text().split()[0]), signal.SIGKILL)
        here.end(child, at).demand("rank 0", "SIGKILL", code=None)
    took = here.wait_until_empty(before)
    return [
        Row("`flow top`: GPU memory", f"{top[0]} MB", f"nvidia-smi {max(held)} MB", reached=True),
        Row("kill -9 of a rank: GPU memory free", seconds(took), to_reach="<= 30 s", reached=True),
    ]


def hang_and_time_out(here: Machine) -> list[Row]:
    """A hang in a kernel: `flow doctor` names the rank; the time-out ends it, and the GPU's memory is free."""
    before = here.used_mb()
    limit = "40s"
    options = ("--name", "hangs", "--processes-per-node", "2", "--max-run-time-hours", limit)
    with here.started(*here.flow_run("misbehave.py", "hang", options=options)) as (child, at):
        logs = here.flow("logs", "hangs")
        here.wait("no rank runs", lambda: "all are there" in here.run(*logs).text, 40.0, child)
        doctor = here.run(*here.flow("doctor", "hangs"))
        here.end(child, at, 120.0).demand(code=None)
    took = here.wait_until_empty(before)
    if "never_ends" not in doctor.text or not re.search(r"rank 1\b", doctor.text):
        raise Failed(f"flow doctor does not name rank 1 in never_ends: {doctor.text[-1500:]}")
    return [
        Row("a kernel that hangs", "`flow doctor` names rank 1 and its line", reached=True),
        Row("time-out: GPU memory free", seconds(took), to_reach="<= 30 s", reached=True),
    ]


def failures_of_cuda(here: Machine) -> list[Row]:
    """CUDA out of memory and an illegal access: the message names rank and cause."""
    rows = []
    for how, cause, advice in (
        ("oom", "CUDA out of memory", "do not fit into the memory of the GPU"),
        ("illegal", "CUDA error: an illegal memory access", "memory that is not its own"),
    ):
        done = here.run(*here.flow_run("misbehave.py", how))
        done.demand("rank 0 on node 0 exited with 1", cause, advice, code=None)
        rows.append(Row(cause, "rank and cause are named", to_reach="named", reached=True))
    return rows


def pinned_arguments(here: Machine) -> list[Row]:
    """A tensor in pinned memory as an argument."""
    done = here.run(sys.executable, PROGRAMS / "functions.py", here.kind, "pinned").demand(
        "found {"
    )
    found = json.loads(done.text.partition("found ")[2].splitlines()[0])
    if found["arrived"][0] != found["sent"]:
        raise Failed(f"another tensor arrived: {found}")
    return [
        Row("16 MB of pinned memory as an argument", "arrives", to_reach="arrives", reached=True)
    ]


def marked_tests(here: Machine) -> list[Row]:
    """The tests that are marked `gpu`."""
    if here.rehearsed:
        raise Skipped("needs CUDA")
    needs = ("pytest", "hypothesis", "xdist", "pytest_timeout", "numpy")
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")
    # Only these files are collected: others import packages that the machine may lack.
    files = [
        each for each in (ROOT / "tests").rglob("test_*.py") if _MARK in each.read_text("utf-8")
    ]
    done = here.run(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--rootdir", ROOT, *files)
    last = (done.text.strip().splitlines() or [""])[-1]
    if done.code:
        raise Failed(done.text[-1500:])
    return [Row("tests marked `gpu`", last, to_reach="pass", reached=True)]


def open_clip(here: Machine) -> list[Row]:
    """OpenCLIP's own training program, with the options of its users and synthetic images."""
    if importlib.util.find_spec("open_clip_train") is None:
        raise Skipped("open_clip_torch is not installed")
    batch, steps = (4, 2) if here.rehearsed else (64, 8)
    words = (
        f"{PYTHON} -m open_clip_train.main --dataset-type synthetic --model ViT-B-32 --precision amp_bf16 "
        f"--train-num-samples {batch * steps} --batch-size {batch} --epochs 1 --workers 2 --local-loss "
        "--gather-with-grad --log-every-n-steps 1"
    )
    options = ("--gpu", here.kind, "--processes-per-node", "1")
    done = here.run(*here.flow("run", *options, "--", *words.split(), "--logs", here.home / "clip"))
    done.demand(f"Device {here.device}", f"[{batch * steps}/{batch * steps} (100%)]")
    # All images are the same, so that the first loss is the logarithm of their number.
    first = re.search(r"Contrastive_loss: ([0-9.]+)", done.text)
    if first is None or abs(float(first[1]) - math.log(batch)) > 0.1:
        raise Failed(f"the first loss is not ln({batch}): {done.text[-1500:]}")
    return [
        Row(
            f"OpenCLIP, ViT-B-32: {steps} steps of {batch}",
            seconds(done.seconds),
            f"first loss {first[1]}, ln({batch}) is {math.log(batch):.3f}",
            to_reach="trains",
            reached=True,
        )
    ]


def _trainer(name: str) -> Callable[[Machine], list[Row]]:
    def check(here: Machine) -> list[Row]:
        if importlib.util.find_spec(name) is None:
            raise Skipped(f"{name} is not installed")
        done = here.run(*here.flow_run("trainers.py", name)).demand(f"trained on {here.device}")
        return [Row(f"{name}: some steps", seconds(done.seconds), to_reach="trains", reached=True)]

    check.__doc__ = f"Some steps with {name}, as it is installed."
    return check


CHECKS: dict[str, Callable[[Machine], list[Row]]] = {
    "fork": untouched_before_the_fork,
    "nccl": nccl_with_one_rank,
    "gloo": gloo_with_two_ranks,
    "torchrun": beside_torchrun,
    "shared": shared_out_and_given_back,
    "kill": memory_after_a_kill,
    "hang": hang_and_time_out,
    "failures": failures_of_cuda,
    "pinned": pinned_arguments,
    "tests": marked_tests,
    "accelerate": _trainer("accelerate"),
    "lightning": _trainer("lightning"),
    "transformers": _trainer("transformers"),
    "deepspeed": _trainer("deepspeed"),
    "open_clip": open_clip,
}
