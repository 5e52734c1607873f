"""S3 dataset integration: a bucket that appears on all nodes, for reading.

The bucket is opened as every AWS tool would open it: by AWS_ACCESS_KEY_ID and its twins, or a profile; AWS_ENDPOINT_URL
says where it is, if not at AWS. Without a bucket of that name, the task fails before it starts, and says why.
"""

import torch.distributed as dist
from scale import scaled
from stubs import backend, create_model, device, load_dataset_from_s3_mount, train_epoch
from torch.nn.parallel import DistributedDataParallel as DDP

from flowlite import Flow, FlowApp

app = FlowApp()


@app.function(gpu="h100:8", num_instances=4, distributed_mode="auto")
def training_with_s3_data():
    """All nodes get identical S3 mount access."""
    # S3 data available at /data on all nodes
    dataset_path = "/data"

    dist.init_process_group(backend=backend())

    # Load the dataset from the S3 mount
    dataset = load_dataset_from_s3_mount(dataset_path)

    model = create_model().to(device())
    model = DDP(model)

    # Train with shared S3 data
    for _ in range(10):
        train_epoch(model, dataset)

    return {"training": "complete"}


if __name__ == "__main__":
    # Submit with an S3 mount, available on all nodes
    flow = Flow()
    task = flow.run(
        scaled(training_with_s3_data)._build_task_config(""),
        mounts={"/data": "s3://ml-datasets/imagenet"},
    )
    print(task.result())
