"""The guide's gangs, made small enough to rehearse on any machine."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from flowlite import Function, GpuRequest


def scaled(function: Function[..., Any]) -> Function[..., Any]:
    """The function, on as many nodes and GPUs as FLOW_GUIDE_SCALE says ("2x2"); as decorated without it.

    The guide's gangs have up to 128 GPUs. Without so many, flowlite rehearses them with one process per GPU on this
    machine; the variable makes that rehearsal smaller.
    """
    scale = os.environ.get("FLOW_GUIDE_SCALE")
    if not scale:
        return function
    nodes, gpus = map(int, scale.split("x"))
    gpu = GpuRequest.parse(function.build_task_config().gpu or "h100")
    return function.options(num_instances=nodes, gpu=str(dataclasses.replace(gpu, count=gpus)))
