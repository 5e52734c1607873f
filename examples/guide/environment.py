"""The environment variables of the guide, as every worker sees them."""

import os

from scale import scaled

from flowlite import FlowApp

app = FlowApp()
VARIABLES = (
    # Coordination
    "FLOW_NODE_RANK",  # this node's rank (0, 1, 2, 3)
    "FLOW_NUM_NODES",  # number of nodes
    "FLOW_MAIN_IP",  # address of node 0
    # PyTorch distributed training
    "RANK",  # global rank of the process (0-31 for 32 GPUs)
    "LOCAL_RANK",  # GPU index within this node (0-7)
    "WORLD_SIZE",  # processes in all
    "MASTER_ADDR",  # address for process group coordination
    "MASTER_PORT",  # port for process group coordination
)


@app.function(gpu="h100:8", num_instances=4)
def environment():
    return {name: os.environ[name] for name in VARIABLES}


if __name__ == "__main__":
    by_rank = scaled(environment).spawn().results()
    for variables in by_rank:
        print(" ".join(f"{name}={value}" for name, value in variables.items()))
    assert [int(v["RANK"]) for v in by_rank] == list(range(len(by_rank)))
    assert len({(v["FLOW_NODE_RANK"], v["LOCAL_RANK"]) for v in by_rank}) == len(by_rank)
    assert {v["WORLD_SIZE"] for v in by_rank} == {str(len(by_rank))}
    assert len({(v["MASTER_ADDR"], v["MASTER_PORT"]) for v in by_rank}) == 1
