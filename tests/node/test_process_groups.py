"""Process groups outlive `destroy_process_group` in a worker (why: see the module)."""

from __future__ import annotations

import subprocess
import sys

HELD = """
import os
import torch.distributed as dist
from flowlite.node import process_groups

process_groups.hold()
process_groups.hold()
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD
from torch.distributed import destroy_process_group

destroy_process_group()
assert not dist.is_initialized()
assert [held is group for held in process_groups._held] == [True], process_groups._held
print("held", flush=True)
os._exit(0)
"""


def test_groups_are_held() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=False)
    assert done.stdout == "held\n", done.stderr


def test_without_torch_there_is_nothing_to_do() -> None:
    code = "import sys; from flowlite.node import process_groups as p; p.hold(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
