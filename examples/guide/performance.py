"""Performance: the networks that are required, within nodes and between them."""

from scale import scaled

from flowlite import FlowApp

app = FlowApp()


@app.function(
    gpu="h100:8",
    num_instances=16,  # 128 GPUs
    internode_interconnect="InfiniBand",  # required between nodes
    intranode_interconnect="SXM5",  # required within nodes
    environment={
        "NCCL_IB_DISABLE": "0",  # InfiniBand for NCCL
        "NCCL_NET_GDR_LEVEL": "3",  # GPU Direct RDMA
    },
)
def high_performance_training():
    """Optimised for maximum multi-node performance."""


if __name__ == "__main__":
    print(scaled(high_performance_training).remote())
