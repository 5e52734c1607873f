"""Shell scripts of a project that start a launcher: refused where each would train a model of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.command_files import refuse_launchers
from flowlite.errors import SpecError
from flowlite.spec import TaskConfig

TORCHRUN = (
    "#!/bin/bash\n# trains\nset -e\nexport X=1\ntorchrun --nproc_per_node 1 \\\n  train.py $@\n"
)


def look(directory: Path, text: str, command: list[str], **options: Any) -> None:
    (directory / "job").mkdir(exist_ok=True)
    (directory / "job" / "train.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
    config = TaskConfig(command=command, **{"num_instances": 2, **options})
    refuse_launchers(config, directory)


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "job/train.sh"],
        ["/bin/sh", "-eu", "job/train.sh", "--lr", "0.1"],
        ["env", "A=1", "bash", "job/train.sh"],
        ["job/train.sh"],
    ],
    ids=" ".join,
)
def test_it_is_refused_with_what_to_add(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        look(tmp_path, TORCHRUN, command)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(
        "job/train.sh: torchrun starts the workers itself; 2 of them would train 2"
    )
    assert "add --manual" in line
    look(tmp_path, TORCHRUN, command, distributed_mode="manual")
    look(tmp_path, TORCHRUN, command, num_instances=1)


def test_in_manual_mode_it_is_told_what_to_write_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        look(tmp_path, "deepspeed train.py", ["sh", "job/train.sh"], distributed_mode="manual")
    assert "; write deepspeed --no_ssh --hostfile $FLOW_HOSTFILE" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        'if [ "$RANK" = 0 ]; then\n  torchrun train.py\nfi',
        '[ "$LOCAL_RANK" = 0 ] || exit 0\ntorchrun train.py',
        "train() { torchrun train.py; }\npython train.py",
        "srun torchrun train.py",
        "torchrun --nnodes $FLOW_NUM_NODES --node_rank $NODE_RANK train.py",
        "cat <<END\ntorchrun train.py\nEND",
        "\udcff\ntorchrun train.py",
        "",
    ],
)
def test_what_is_not_certain_is_left_alone(tmp_path: Path, text: str) -> None:
    look(tmp_path, text, ["bash", "job/train.sh"])


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "cat job/train.sh"],
        ["bash", "absent.sh"],
        ["bash", "job"],
        ["bash"],
        ["python", "job/train.sh"],
        ["cat", "job/train.sh"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_run_it_is_left_alone(tmp_path: Path, command: list[str]) -> None:
    look(tmp_path, TORCHRUN, command)


def test_a_program_of_another_language_is_left_alone(tmp_path: Path) -> None:
    look(tmp_path, "#!/usr/bin/env python3\ntorchrun", ["job/train.sh"])
    look(tmp_path, TORCHRUN.removeprefix("#!/bin/bash"), ["job/train.sh"])


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.sh")
    refuse_launchers(TaskConfig(command=["bash", "train.sh"], num_instances=2), tmp_path)


# Configurations of Accelerate

ALONE = "distributed_type: NO\nnum_machines: 1\n"
FIRST = "distributed_type: FSDP\nnum_machines: 2\nmachine_rank: 0\nmain_process_ip: 10.0.0.1\n"


def launch(directory: Path, text: str, command: list[str] | str, **options: Any) -> None:
    (directory / "conf.yaml").write_text(text)
    (directory / "go.sh").write_text("accelerate launch --config_file conf.yaml train.py\n")
    config = TaskConfig(
        command=command, **{"num_instances": 2, "distributed_mode": "manual", **options}
    )
    refuse_launchers(config, directory)


@pytest.mark.parametrize(
    ("text", "why"),
    [(FIRST, "the same machine_rank, 0"), (ALONE, "would train a separate model")],
)
@pytest.mark.parametrize(
    "command",
    [
        ["accelerate", "launch", "--config_file", "conf.yaml", "train.py"],
        "poetry run accelerate launch --config-file=conf.yaml train.py",
        ["sh", "go.sh"],
    ],
    ids=str,
)
def test_a_configuration_for_one_machine_is_refused_on_several(
    tmp_path: Path, command: list[str] | str, text: str, why: str
) -> None:
    for options in ({}, {"distributed_mode": "auto"}):
        with pytest.raises(SpecError, match=rf"conf\.yaml .*{why}.*\$FLOW_ACCELERATE_CONFIG"):
            launch(tmp_path, text, command, **options)
    launch(tmp_path, text, command, num_instances=1)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FIRST, "--machine_rank $FLOW_NODE_RANK --main_process_ip $FLOW_MAIN_IP"),
        (FIRST, "--num_machines $FLOW_NUM_NODES --machine_rank $NODE_RANK"),
        (ALONE, "--multi_gpu"),
        ("distributed_type: FSDP\nnum_machines: 1\nmachine_rank: 0\n", ""),
        ("distributed_type: [", ""),
        ("just text", ""),
    ],
)
def test_one_that_forms_the_gang_is_right(tmp_path: Path, text: str, options: str) -> None:
    launch(tmp_path, text, f"accelerate launch --config_file conf.yaml {options} train.py")


def test_a_configuration_elsewhere_is_not_looked_for(tmp_path: Path) -> None:
    for name in ("$CONF", "/absent.yaml", "absent.yaml", "."):
        launch(tmp_path, ALONE, f"accelerate launch --config_file {name} train.py")
    launch(tmp_path, ALONE, ["sh", "-c", "cd a && accelerate launch --config_file conf.yaml b.py"])
