"""Launchers of others in a command: seen where it is certain, refused where each would train a model of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import SpecError
from flowlite.spec import TaskConfig
from flowlite.spec.launchers import launcher_in

SEEN: list[tuple[list[str] | str, str]] = [
    (["torchrun", "train.py"], "torchrun"),
    ("torchrun --nproc-per-node 8 train.py", "torchrun"),
    (["/opt/env/bin/torchrun", "train.py"], "torchrun"),
    (["env", "X=1", "-u", "Y", "torchrun", "train.py"], "torchrun"),
    (["bash", "-c", "cd /code && torchrun train.py"], "torchrun"),
    (["/bin/sh", "-ec", "export A=1; exec torchrun train.py"], "torchrun"),
    (["bash", "-lc", "env X=1 nohup torchrun train.py > log 2>&1"], "torchrun"),
    ("set -e\n# prepare\nsource env.sh\nX=1 torchrun train.py", "torchrun"),
    (["timeout", "-k", "5", "1h", "torchrun", "train.py"], "torchrun"),
    (["python", "-m", "torch.distributed.run", "train.py"], "torchrun"),
    (["python3.11", "-u", "-X", "dev", "-mtorch.distributed.launch", "train.py"], "torchrun"),
    ("accelerate launch train.py", "accelerate launch"),
    (["deepspeed", "train.py"], "deepspeed"),
    (["horovodrun", "-np", "4", "python", "train.py"], "horovodrun"),
    (["uv", "run", "torchrun", "train.py"], "torchrun"),
    (["uv", "run", "env", "X=1", "torchrun", "train.py"], "torchrun"),
    (["accelerate-launch", "--num_processes", "1", "train.py"], "accelerate launch"),
    (["numactl", "-N", "0", "--membind=0", "torchrun", "train.py"], "torchrun"),
    (["taskset", "-c", "0-3", "torchrun", "train.py"], "torchrun"),
    (["mpirun", "-n", "2", "python", "train.py"], "mpirun"),
    ("cd /code && mpiexec.hydra -n 2 ./train", "mpirun"),
]

NOT_SEEN: list[list[str] | str] = [
    ["echo", "torchrun"],
    ["python", "torchrun.py"],
    ["python", "train.py", "torchrun"],
    ["pip", "install", "deepspeed"],
    ["python", "-m", "pip", "install", "torchrun"],
    ["accelerate", "config"],
    ["torchrun", "--help"],
    ["bash", "torchrun.sh"],
    ["bash", "-c", "$LAUNCH train.py"],
    "which torchrun",
    "command -v torchrun",
    'echo "&&" torchrun',
    "echo 'a\ntorchrun b'",
    "echo a # ; torchrun b",
    "cat <<END\ntorchrun train.py\nEND",
    '[ "$RANK" = 0 ] && torchrun train.py',
    "(( RANK == 0 )) && torchrun train.py",
    "hostname | grep -q node0 && torchrun train.py",
    "if [ $LOCAL_RANK = 0 ]; then torchrun train.py; fi",
    '[ "$LOCAL_RANK" = 0 ] || exec sleep 1d; torchrun train.py',
    '[ "$LOCAL_RANK" = 0 ] || exit 0; torchrun train.py',
    "python train.py || torchrun train.py",
    "run() { torchrun train.py; }; python train.py",
    'torchrun "train.py',
]


@pytest.mark.parametrize(("command", "name"), SEEN, ids=[str(each) for each, _ in SEEN])
def test_a_launcher_is_seen_and_refused_with_what_to_add(
    command: list[str] | str, name: str
) -> None:
    found = launcher_in(command)
    assert found is not None
    assert found.name == name
    options: dict[str, Any] = {"command": command, "num_instances": 2, "processes_per_node": 2}
    with pytest.raises(SpecError) as refused:
        TaskConfig(**options)
    (line,) = str(refused.value).splitlines()
    assert f"{name} starts the workers itself; 4 of them would train 4 separate models" in line
    assert ("--mode mpi" if name in ("horovodrun", "mpirun") else "--manual") in line
    assert TaskConfig(**options, distributed_mode="manual").command


@pytest.mark.parametrize("command", NOT_SEEN, ids=str)
def test_what_is_no_launcher_or_not_certain_is_left_alone(command: list[str] | str) -> None:
    assert launcher_in(command) is None
    assert TaskConfig(command=command, num_instances=2, processes_per_node=2).command


def test_one_process_in_all_may_be_a_launcher() -> None:
    assert (
        TaskConfig(command=["torchrun", "--nproc-per-node", "2", "train.py"]).total_processes == 1
    )
    with pytest.raises(SpecError, match="8 separate models"):
        TaskConfig(command=["torchrun", "train.py"], gpu="h100:8")


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nnodes=2", "--node-rank", "$NODE_RANK", "train.py"],
        ["torchrun", "--rdzv-endpoint=$MASTER_ADDR:29500", "train.py"],
        ["accelerate", "launch", "--num_machines", "2", "train.py"],
        ["torchrun", "--nnodes", "1:4", "train.py", "--nnodes=1"],
    ],
)
def test_a_launcher_on_each_node_that_knows_the_others_is_right(words: list[str]) -> None:
    line = " ".join(words)
    assert TaskConfig(command=line, num_instances=2, processes_per_node=1).command == line
    with pytest.raises(SpecError, match="--manual"):
        TaskConfig(command=line, num_instances=2, processes_per_node=2)


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nnodes=1", "train.py"],
        ["torchrun", "--nnodes", "1:1", "--rdzv-endpoint=localhost:0", "train.py"],
        ["torchrun", "--standalone", "--nnodes=2", "train.py"],
        ["torchrun", "--rdzv_backend=c10d", "train.py"],
        ["accelerate", "launch", "--num_machines", "1", "train.py"],
    ],
)
def test_a_launcher_on_each_node_that_knows_of_no_other_is_refused(words: list[str]) -> None:
    with pytest.raises(SpecError, match="2 separate models; add --manual"):
        TaskConfig(command=words, num_instances=2)
    assert TaskConfig(command=words).command


@given(
    st.lists(
        st.sampled_from(
            [
                "torchrun",
                "echo",
                "&&",
                "||",
                ";",
                "\n",
                "'",
                '"',
                "\\",
                "#",
                "$(",
                ")",
                "<<",
                " ",
                "env",
                "bash -c",
            ]
        )
        | st.text(max_size=4)
    ).map("".join)
)
def test_any_text_can_be_looked_at(line: str) -> None:
    launcher_in(line)
    launcher_in(["sh", "-c", line])


@given(st.text(min_size=1))
def test_a_quoted_text_is_never_a_launcher(text: str) -> None:
    quoted = "'" + text.replace("'", "'\\''") + "'"
    assert launcher_in(f"echo {quoted} torchrun") is None
