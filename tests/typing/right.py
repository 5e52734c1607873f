"""Right uses of the public names; both type checkers must accept every line."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import assert_type

from flowlite import (
    Flow,
    FlowApp,
    Function,
    LogLine,
    Retries,
    Secret,
    Task,
    TaskConfig,
    Volume,
    as_completed,
)

app = FlowApp("digits", provider="local", num_instances=2, environment={"A": "1"})


@app.function
def bare(x: int, label: str = "") -> float:
    return float(x)


@app.function(
    gpu="h100:8",
    num_instances=4,
    processes_per_node="auto",
    distributed_mode="auto",
    volumes={
        "/shared/ckpt": {"name": "ckpt", "size_gb": 500, "interface": "file"},
        "/shared/logs": "logs",
        "/shared/data": Volume("data", size_gb=10),
    },
    mounts={"/data": "s3://bucket/x"},
    environment={"NCCL_DEBUG": "WARN"},
    secrets=["HF_TOKEN", Secret("WANDB_API_KEY", file="~/.wandb")],
    image="nvcr.io/nvidia/pytorch:24.01-py3",
    dependencies=["numpy>=2"],
    python="3.11",
    priority="med",
    spot=True,
    max_price_per_hour=50.0,
    max_run_time_hours=12,
    max_cost=100,
    retries=Retries(2, delay=5),
    internode_interconnect="InfiniBand",
    intranode_interconnect="SXM5",
    provider="local",
    region="here",
    cpu=8,
    memory="64GB",
    name="training",
)
def full(lr: float = 1e-4, *, steps: int = 1) -> dict[str, float]:
    return {"loss": lr}


@app.function()
async def waiting(x: int) -> str:
    return str(x)


@app.function(num_instances=2)
def nothing() -> None: ...


# Here
assert_type(bare(1), float)
assert_type(bare.local(1, label="x"), float)
assert_type(full(steps=2), dict[str, float])

# On a gang
assert_type(bare.remote(1, "x"), float)
assert_type(full.remote(lr=5e-5), dict[str, float])
assert_type(full.remote(), dict[str, float])
assert_type(waiting.remote(1), str)
nothing.remote()
task: Task[dict[str, float]] = full.spawn(learned := 1e-3, steps=3)
assert_type(task.result(), dict[str, float])
assert_type(task.results(), list[dict[str, float]])
assert_type(waiting.spawn(1).result(), str)
same: Function[[int], str] | None = None

# Many
assert_type(bare.map([1, 2]), Iterator[float])
assert_type(full.map([1e-3, 1e-4], max_concurrent=2), Iterator[dict[str, float]])
assert_type(waiting.map(range(3)), Iterator[str])
assert_type(bare.starmap([(1, "a"), (2, "b")], return_exceptions=True), Iterator[float])

# Options and configurations
assert_type(bare.options(gpu="h100", max_cost=None).remote(1), float)
assert_type(full.build_task_config(1e-4, steps=2), TaskConfig)
config = TaskConfig(name="x", num_instances=2, gpu="h100:8", command=["python", "train.py"])
assert_type(config.total_processes, int)
assert_type(config.replace(num_instances=3, volumes={"/a": "b"}), TaskConfig)
flow = Flow(provider="local")
assert_type(flow.get_task("x").name, str)
flow.run(config, mounts={"/data": "s3://bucket"}, wait=True)
flow.run(full)
flow.run(Path("task.yaml"))
for line in task.logs(node=1, follow=True):
    assert_type(line, LogLine)


# In an event loop
async def in_a_loop() -> None:
    assert_type(bare.map.aio([1, 2]), AsyncIterator[float])
    assert_type(waiting.map.aio(range(3), max_concurrent=2), AsyncIterator[str])
    assert_type(bare.starmap.aio([(1, "a")], return_exceptions=True), AsyncIterator[float])
    async for result in full.map.aio([1e-3]):
        assert_type(result, dict[str, float])
    assert_type(await bare.remote.aio(1, label="x"), float)
    assert_type(await waiting.remote.aio(1), str)
    assert_type(await bare.spawn(1), float)
    assert_type(await bare.spawn(1).wait_async(), Task[float])
    async for line in task.logs(follow=True):
        assert_type(line, LogLine)
    async for ended in as_completed([bare.spawn(1), bare.spawn(2)], timeout=5):
        assert_type(ended, Task[float])


for one in as_completed([bare.spawn(1)]):
    assert_type(one.result(show_logs=False), float)
