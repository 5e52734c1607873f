"""Wrong uses of the public names. Both type checkers must find an error in every line that says so, and in no other."""

from flowlite import FlowApp, Retries, Task, TaskConfig, Volume, as_completed

app = FlowApp()


@app.function
def bare(x: int, label: str = "") -> float:
    return float(x)


@app.function(gpu="h100:8")
def full(lr: float = 1e-4, *, steps: int = 1) -> dict[str, float]:
    return {"loss": lr}


@app.function()
async def waiting(x: int) -> str:
    return str(x)


# Calls
bare("1")  # wrong
bare.remote("1")  # wrong
bare.remote()  # wrong
bare.remote(1, 2)  # wrong
bare.remote(1, lable="x")  # wrong
full.remote(1e-4, 3)  # wrong
full.remote(step=3)  # wrong
full.spawn(steps="3")  # wrong
waiting.remote("1")  # wrong
bare.build_task_config()  # wrong
bare.local("1")  # wrong
f = bare.remote.aio("1")  # wrong
as_completed([1])  # wrong

# Results
a: str = bare.remote(1)  # wrong
b: Task[int] = bare.spawn(1)  # wrong
c: int = waiting.remote(1)  # wrong
d: list[int] = bare.spawn(1).results()  # wrong

# Many
bare.map(["1"])  # wrong
bare.map([1], max_concurrent="2")  # wrong
bare.starmap([1])  # wrong
bare.map(5)  # wrong
bare.map.aio(["1"])  # wrong
full.map(["x"])  # wrong
e: list[str] = list(bare.map([1]))  # wrong

# Options
app.function(gpus="h100")  # wrong
app.function(gpu=8)  # wrong
app.function(num_instances=4.5)  # wrong
app.function(distributed_mode="autom")  # wrong
app.function(priority="middle")  # wrong
app.function(checkpoint="/ckpt")  # wrong
app.function(command="ls")  # wrong
app.function(volumes={"/a": {"name": "a", "size": 3}})  # wrong
app.function(environment={"A": 1})  # wrong
bare.options(num_instance=2)  # wrong
bare.options(max_cost="5")  # wrong
FlowApp(gpus="h100")  # wrong
FlowApp(num_instances=4.5)  # wrong
TaskConfig(gpus="h100")  # wrong
TaskConfig(num_instances=4.5)  # wrong
TaskConfig().replace(num_instance=4)  # wrong
Volume("a", size=3)  # wrong
Volume("a", interface="nfs")  # wrong
Retries("3")  # wrong
Retries(3, dealy=1)  # wrong
