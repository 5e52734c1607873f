"""A batch script on hosts reached by SSH: four machines that know nothing of Slurm."""

from __future__ import annotations

from pathlib import Path

from flowlite.testing.hosts import Cluster
from tests.batch.conftest import TRAIN
from tests.providers.lab import Lab

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=3
#SBATCH --job-name=hosts
export MASTER_PORT=12802
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SECRET_OF_THE_SCRIPT=kept
srun python -u train.py --lr 5e-4
srun -l hostname | sort -n
last=$(scontrol show hostnames | tail -n 1)
srun -w $last -n1 sh -c 'echo "on $(hostname): $SLURMD_NODENAME $FLOW_NODE_RANK $SECRET_OF_THE_SCRIPT $(pwd)"'
"""


def test_a_script_over_ssh(hosts: Cluster, flow_home: Path, tmp_path: Path) -> None:
    lab = Lab(hosts, flow_home)
    for host in lab.hosts:
        host.exec(["mkdir", "-p", "/srv/clip"])
        host.exec(["sh", "-c", f"cat > /srv/clip/train.py <<'END'\n{TRAIN}\nEND"])
    script = tmp_path / "job.sbatch"
    script.write_text(SCRIPT)
    done = lab.flow("run", "--workdir", "/srv/clip", str(script))
    said = sorted(line.partition("] ")[2].partition("] ")[2] for line in done.stdout.splitlines())
    leader = lab.hosts[0].address
    assert [line for line in said if line.startswith("rank ")] == [
        f"rank {rank} local 0 world 3 sum 6 lr 0.0005" for rank in range(3)
    ]
    assert said.count(f"master {leader}:12802 rest 0") == 3
    assert [f"{n}: node0{n}" for n in range(3)] == [line for line in said if line[1:2] == ":"]
    assert f"on node02: {lab.hosts[2].address} 2 kept /srv/clip" in said
    assert lab.held() == {}
