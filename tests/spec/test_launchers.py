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
    (["uv", "run", "--with", "rich", "--frozen", "torchrun", "train.py"], "torchrun"),
    (["uv", "run", "-m", "torch.distributed.run", "train.py"], "torchrun"),
    ("poetry run accelerate launch train.py", "accelerate launch"),
    (["conda", "run", "-n", "llm", "--no-capture-output", "torchrun", "train.py"], "torchrun"),
    (["axolotl", "train", "llama.yaml"], "axolotl train"),
    (["axolotl", "train", "llama.yaml", "--launcher=torchrun"], "axolotl train"),
    (["tune", "run", "--nproc_per_node", "2", "full_finetune_distributed"], "tune run"),
    (["trl", "sft", "--model_name_or_path", "m"], "trl sft"),
    ("uv run trl grpo --config grpo.yaml", "trl grpo"),
    (["fabric", "run", "--devices", "2", "train.py"], "fabric run"),
    (["composer", "-n", "8", "train.py", "config.yaml"], "composer"),
    (["python", "-m", "composer.cli.launcher", "train.py"], "composer"),
    ("composer -n 8 -m llmfoundry.train", "composer"),
    (["colossalai", "run", "--nproc_per_node", "2", "train.py"], "colossalai run"),
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
    ["uv", "run", "--with", "torchrun", "train.py"],
    ["uv", "run"],
    ["poetry", "run", "python", "torchrun"],
    ["conda", "install", "deepspeed"],
    ["axolotl", "train", "llama.yaml", "--launcher", "python"],
    ["axolotl", "preprocess", "llama.yaml"],
    ["tune", "run", "full_finetune_single_device", "--config", "torchrun"],
    ["tune", "run"],
    ["llamafactory-cli", "export", "llama.yaml"],
    ["trl", "vllm-serve", "--model", "m"],
    ["trl", "sft", "--help"],
    "composer install && php train.php",
    ["colossalai", "check", "-i"],
]

# What is not told of the other nodes when it runs once on each, and what it must be given.
ALONE: list[tuple[str, str]] = [
    ("accelerate launch train.py", "accelerate launch --config_file $FLOW_ACCELERATE_CONFIG"),
    ("python -m accelerate.commands.launch a.py", "--config_file $FLOW_ACCELERATE_CONFIG"),
    ("accelerate launch --num_processes 2 a.py", "--config_file $FLOW_ACCELERATE_CONFIG"),
    ("axolotl train a.yaml", "axolotl train … -- --config_file $FLOW_ACCELERATE_CONFIG"),
    ("trl dpo --config a.yaml", "trl dpo … --accelerate_config $FLOW_ACCELERATE_CONFIG"),
    ("deepspeed --num_gpus 8 a.py --deepspeed ds.json", "deepspeed --no_ssh --hostfile $FLOW_HOSTFILE"),
    ("cd /code && poetry run deepspeed train.py", "--no_ssh --hostfile $FLOW_HOSTFILE"),
    ("fabric run --devices 2 train.py", "--num-nodes $FLOW_NUM_NODES --node-rank $FLOW_NODE_RANK"),
    ("torchrun --standalone --nproc_per_node=8 train.py", "leave out --standalone"),
    ("composer train.py -n 1 --world_size 2", "--world_size $((FLOW_NUM_NODES * PET_NPROC_PER_NODE)) …"),
    ("colossalai run --nproc_per_node 2 --host a,b train.py", "write torchrun in its place"),
]  # fmt: skip

FORMS_THE_GANG = [
    "torchrun train.py",
    "torchrun --standalone --nnodes=1 train.py",
    "torchrun train.py --standalone --nnodes=1",
    "accelerate launch --config_file $FLOW_ACCELERATE_CONFIG train.py",
    "accelerate launch --num_machines 2 --machine_rank $NODE_RANK train.py",
    "accelerate launch --num_machines 1 train.py",
    "accelerate launch --multi_gpu train.py",
    "accelerate launch --use-fsdp train.py",
    "axolotl train a.yaml --launcher torchrun",
    "axolotl train a.yaml -- --config_file $FLOW_ACCELERATE_CONFIG",
    "trl sft --accelerate_config $FLOW_ACCELERATE_CONFIG --config a.yaml",
    "trl sft --config a.yaml --num_machines 2 --machine_rank $NODE_RANK",
    "deepspeed --no_ssh --hostfile $FLOW_HOSTFILE --node_rank $NODE_RANK train.py",
    "deepspeed -H hosts train.py",
    "fabric run --num-nodes=2 --node-rank=$NODE_RANK train.py",
    "tune run --nproc_per_node 2 full_finetune_distributed",
    "composer -n 8 --world_size $((FLOW_NUM_NODES * 8)) train.py",
    "python train.py",
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
    if name in ("torchrun", "horovodrun", "mpirun", "tune run"):
        assert TaskConfig(**options, distributed_mode="manual").command


@pytest.mark.parametrize("command", NOT_SEEN, ids=str)
def test_what_is_no_launcher_or_not_certain_is_left_alone(command: list[str] | str) -> None:
    assert launcher_in(command) is None
    assert TaskConfig(command=command, num_instances=2, processes_per_node=2).command


@pytest.mark.parametrize(("command", "write"), ALONE, ids=[each for each, _ in ALONE])
def test_once_per_node_a_launcher_that_is_not_told_of_the_others_is_refused(
    command: str, write: str
) -> None:
    """It would form a gang of each node, and end with 0."""
    with pytest.raises(SpecError) as refused:
        TaskConfig(command=command, num_instances=(2, 3), distributed_mode="manual")
    (line,) = str(refused.value).splitlines()
    assert write in line
    assert "each of 3" in line
    assert TaskConfig(command=command, distributed_mode="manual").command


@pytest.mark.parametrize("command", FORMS_THE_GANG)
def test_once_per_node_a_launcher_that_knows_the_others_or_reads_them_is_right(
    command: str,
) -> None:
    assert TaskConfig(command=command, num_instances=2, distributed_mode="manual").command


def test_accelerate_reads_the_other_nodes_by_itself_where_a_node_has_several_gpus() -> None:
    config: dict[str, Any] = {"num_instances": 2, "distributed_mode": "manual"}
    for command in ("accelerate launch train.py", "axolotl train llama.yaml"):
        assert TaskConfig(command=command, gpu="h100:8", **config).command
        with pytest.raises(SpecError, match="at most one GPU"):
            TaskConfig(command=command, gpu="h100:1", **config)
    with pytest.raises(SpecError, match="separate model; write"):
        TaskConfig(command="accelerate launch --cpu train.py", gpu="h100:8", **config)


def test_llama_factory_starts_torchrun_only_where_it_sees_several_gpus() -> None:
    command = ["llamafactory-cli", "train", "llama.yaml"]
    with pytest.raises(SpecError, match="llamafactory-cli train starts the workers itself; 16"):
        TaskConfig(command=command, num_instances=2, gpu="h100:8")
    assert TaskConfig(command=command, num_instances=2, gpu="h100:1").command
    assert TaskConfig(command=command, num_instances=2, processes_per_node=2).command
    assert TaskConfig(
        command=command, num_instances=2, gpu="h100:8", distributed_mode="manual"
    ).command


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


def test_composer_reads_the_variables_of_a_rank_where_it_starts_one() -> None:
    assert TaskConfig(command="composer train.py -n 2", num_instances=2).command
    with pytest.raises(SpecError, match="2 separate models; add --manual"):
        TaskConfig(command="composer -n 2 train.py", num_instances=2)


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
