"""From batch scripts to configurations: what each option becomes, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import SpecError
from flowlite.spec.batch import Reading, read_batch, values
from flowlite.spec.batch.missing_commands import look
from flowlite.spec.batch.script import BatchScript

Read = Callable[..., Reading]

CLIP = """\
#!/bin/bash -x
#SBATCH --nodes=64
#SBATCH --gres=gpu:4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --wait-all-nodes=1
#SBATCH --job-name=clip_vit_l14
#SBATCH --account=ACCOUNT
#SBATCH --partition=booster
#SBATCH --time=7-00:00:00
#SBATCH --output=logs/slurm-%j.out
conda activate open_clip
srun --cpu_bind=v --accel-bind=gn python -u train.py
"""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(script: str, provider: str = "local", **options: Any) -> Reading:
        path = tmp_path / "job.sbatch"
        path.write_text(script if script.startswith("#!") else _script(script))
        return read_batch(path, options, provider=provider)

    return run


def _script(directives: str) -> str:
    return f"#!/bin/bash\n#SBATCH {directives}\nsrun true\n"


def variables(reading: Reading, element: int = 0) -> dict[str, str]:
    return dict((reading.configs[element].batch or {})["variables"])


def test_the_guides_script_on_this_machine(read: Read) -> None:
    found = read(CLIP)
    (config,) = found.configs
    assert (config.num_instances, config.processes_per_node, config.gpu) == (64, 4, None)
    assert config.distributed_mode == "auto"
    assert config.max_run_time_hours == 168
    assert config.name == "clip_vit_l14"
    assert config.command == ("job.sbatch",)
    assert (config.cpu, config.memory) == (None, None)
    assert (config.batch or {})["counts"] == [4] * 64
    assert variables(found) | {"SLURM_CPUS_PER_TASK": "8"} == variables(found)
    assert variables(found)["SLURM_JOB_PARTITION"] == "booster"
    assert variables(found)["SLURM_GPUS_ON_NODE"] == "4"
    said = "\n".join(found.notes)
    for word in ("--output=logs", "--account=ACCOUNT", "--partition=booster", "--gpu h100:4"):
        assert word in said
    assert "wait-all-nodes" not in said


@pytest.mark.parametrize("provider", ["local", "slurm"])
def test_newer_options_of_sbatch_are_known(read: Read, provider: str) -> None:
    found = read("-N1 --stepmgr --extra=x --oom-kill-step=1 --resv-ports=2", provider)
    (config,) = found.configs
    passed = ("--stepmgr", "--extra=x", "--oom-kill-step=1", "--resv-ports=2")
    assert config.slurm == ({"sbatch": passed} if provider == "slurm" else {})


def test_values_with_blanks_and_quotes_reach_sbatch_whole(read: Read) -> None:
    script = """#!/bin/bash
#SBATCH -N1 --mail-user="a@b.c, d@e.f"
#SBATCH --wckey="it's a \\"key\\""
true
"""
    (config,) = read(script, "slurm").configs
    lines = "\n".join(f"#SBATCH {each}" for each in config.slurm["sbatch"])
    again = BatchScript.parse(f"#!/bin/bash\n{lines}\n", Path("again")).values()
    assert [each.value for each in again.values()] == ["a@b.c, d@e.f", 'it\'s a "key"']


def test_another_cluster_is_refused(read: Read) -> None:
    with pytest.raises(SpecError, match=r"--clusters cannot be given here; use a login node"):
        read("-N1 -M other", "slurm")
    assert "--clusters=other has no effect outside Slurm" in read("-N1 -M other").notes


def test_srun_writes_behind_what_is_there_if_the_script_does(read: Read) -> None:
    assert variables(read("-N1 --open-mode=append"))["SLURM_OPEN_MODE"] == "a"
    assert "SLURM_OPEN_MODE" not in variables(read("-N1"))


def test_the_same_on_slurm_keeps_the_words_of_the_cluster(read: Read) -> None:
    found = read(CLIP, "slurm")
    (config,) = found.configs
    assert config.slurm == {"account": "ACCOUNT", "partition": "booster", "gres": "gpu:4"}
    assert (config.gpu, config.cpu) == (None, 32.0)
    assert [note for note in found.notes if "--output" not in note] == []


def test_the_same_on_rented_machines_needs_a_model(read: Read) -> None:
    with pytest.raises(SpecError, match="say which: flow run --gpu h100:4"):
        read(CLIP, "aws")
    (config,) = read(CLIP, "aws", gpu="a100:4").configs
    assert (config.gpu, config.cpu) == ("a100:4", 32.0)


def test_options_of_the_command_line_win(read: Read) -> None:
    found = read(CLIP, num_instances=2, name="mine", environment={"A": "1"})
    (config,) = found.configs
    assert (config.num_instances, config.name, config.environment) == (2, "mine", {"A": "1"})
    assert (config.batch or {})["counts"] == [4, 4]
    (config,) = read("-N 8 -n 32 --ntasks-per-node=4", num_instances=2).configs
    assert (config.batch or {})["counts"] == [4, 4]
    (config,) = read("-N 2 -n 8", processes_per_node=1).configs
    assert (config.batch or {})["counts"] == [1, 1]


@pytest.mark.parametrize(
    ("directives", "nodes", "counts"),
    [
        ("-N2", 2, [1, 1]),
        ("-n8", 1, [8]),
        ("-n8 --ntasks-per-node=4", 2, [4, 4]),
        ("-N3 -n4", 3, [2, 1, 1]),
        ("-N2-4", 2, [1, 1]),
        ("--gres=gpu:4", 1, [1]),
        ("-N2 --tasks-per-node=3", 2, [3, 3]),
    ],
)
def test_nodes_and_tasks(read: Read, directives: str, nodes: int, counts: list[int]) -> None:
    (config,) = read(directives).configs
    assert config.num_instances == nodes
    assert config.processes_per_node == max(counts)
    assert (config.batch or {})["counts"] == counts


@pytest.mark.parametrize(
    ("directives", "gpu", "of_cluster"),
    [
        ("--gres=gpu:h100:4", "h100:4", {"gres": "gpu:h100:4"}),
        ("--gres=gpu:nvidia_a100_80gb:2,license:1", "a100-80gb:2", None),
        ("--gpus-per-node=A100:2", "a100:2", {"gpus_per_node": "A100:2"}),
        ("-N2 --gpus=v100:8", "v100:4", {"gpus_per_node": "v100:4"}),
        ("--ntasks-per-node=8 --gpus-per-task=1", None, {"gpus_per_node": "8"}),
        ("--gres=gpu", None, {"gres": "gpu"}),
        ("-n4 --ntasks-per-gpu=2", None, {"gpus_per_node": "2"}),
    ],
)
def test_gpus(
    read: Read, directives: str, gpu: str | None, of_cluster: dict[str, str] | None
) -> None:
    assert read(directives).configs[0].gpu == gpu
    if of_cluster is not None:
        assert read(directives, "slurm").configs[0].slurm == of_cluster


@pytest.mark.parametrize(
    "directives",
    [
        "--gres=gpu:8,license:1",
        "--gpus-per-node=8",
        "-N2 --gpus=a100:16",
        "--ntasks-per-node=4 --gpus-per-task=2",
    ],
)
def test_gpus_of_the_command_line_replace_those_of_the_script(read: Read, directives: str) -> None:
    written = f"{directives} --cpus-per-gpu=3 --mem-per-gpu=10G"
    found = read(written, "aws", gpu="h100:4")
    (config,) = found.configs
    assert (config.gpu, config.cpu, config.memory) == (
        "h100:4",
        12.0,
        pytest.approx(42.95, abs=0.01),
    )
    seen = {name: value for name, value in variables(found).items() if "GPUS" in name}
    each = {"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS_PER_NODE": "4"}
    each |= {"SLURM_GPUS": str(4 * config.most_nodes), "SLURM_GPUS_PER_TASK": "1"}
    assert seen["SLURM_GPUS_ON_NODE"] == "4"
    assert seen == {name: each[name] for name in seen}
    asked = read(written, "slurm", gpu="h100:4").configs[0].slurm
    assert asked == {"mem": "40960M"} | ({"gres": "license:1"} if "license" in directives else {})


def test_a_script_without_gpus_is_told_of_those_of_the_command_line(read: Read) -> None:
    assert variables(read("-N1", gpu="h100:4"))["SLURM_GPUS_ON_NODE"] == "4"
    # The plan chooses one of them, which may have another number.
    assert "SLURM_GPUS_ON_NODE" not in variables(read("-N1", gpu="h100:4,a100:8"))
    with pytest.raises(SpecError, match=r"job\.sbatch: gpu: 'nope:4' is not a GPU"):
        read("-N1", gpu="nope:4")


def test_gpus_that_are_replaced_need_not_fit_the_nodes(read: Read) -> None:
    (config,) = read("-N2 --gpus=8", "aws", gpu="h100:4", num_instances=3).configs
    assert (config.gpu, config.num_instances) == ("h100:4", 3)


@pytest.mark.parametrize(
    ("directives", "memory", "cores", "mem"),
    [
        ("--mem=64G", 68.719, None, "64G"),
        ("--mem=2000", 2.097, None, "2000"),
        ("--mem=0", None, None, "0"),
        ("--mem-per-cpu=2G -c 4 -n 2", 17.18, 8.0, "16384M"),
        ("--mem-per-gpu=16G --gres=gpu:t4:2", 34.36, None, "32768M"),
        ("--cpus-per-gpu=6 --gres=gpu:t4:2", None, 12.0, None),
    ],
)
def test_memory_and_cores(
    read: Read, directives: str, memory: float | None, cores: float | None, mem: str | None
) -> None:
    (config,) = read(directives, "aws").configs
    assert config.memory == (None if memory is None else pytest.approx(memory, abs=1e-3))
    assert config.cpu == cores
    assert read(directives, "slurm").configs[0].slurm.get("mem") == mem


def test_arrays(read: Read) -> None:
    found = read("--array=0-8:4,10%2 -J sweep")
    assert (len(found.configs), found.at_once, found.is_array) == (4, 2, True)
    assert [config.name for config in found.configs] == [
        "sweep-0",
        "sweep-4",
        "sweep-8",
        "sweep-10",
    ]
    assert variables(found, 1)["SLURM_ARRAY_TASK_ID"] == "4"
    assert variables(found)["SLURM_ARRAY_TASK_COUNT"] == "4"
    assert (variables(found)["SLURM_ARRAY_TASK_MIN"], variables(found)["SLURM_ARRAY_TASK_MAX"]) == (
        "0",
        "10",
    )
    numbers = {variables(found, n)["SLURM_ARRAY_JOB_ID"] for n in range(4)}
    assert len(numbers) == 1
    assert variables(found)["SLURM_JOB_NAME"] == "sweep"
    assert read("-a 3").is_array
    assert not read("-N1").is_array


def test_an_array_with_large_gaps_has_all_its_tasks(read: Read) -> None:
    ids = values.array("0-100000:50,7-7").ids
    assert (len(ids), ids[-1]) == (2002, 100_000)
    assert len(values.array("0-19998:2").ids) == values.MOST_ELEMENTS
    with pytest.raises(SpecError, match="more than 10000 tasks"):
        read("--array=0-20000:2")


@pytest.mark.parametrize("nodes", [0, "0", -1, "2:4"])
def test_a_number_of_nodes_that_cannot_be_is_refused(tmp_path: Path, nodes: int | str) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=4\ntrue\n")
    with pytest.raises(SpecError, match="one number of nodes, of at least 1, not for"):
        read_batch(script, {"num_instances": nodes})


def test_environment_and_directory(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    (config,) = read("--export=\"ALL,LR=1e-3,WANDB_MODE,NOTE='a,b'\" -D src").configs
    assert config.environment == {"LR": "1e-3", "WANDB_MODE": "offline", "NOTE": "a,b"}
    assert config.workdir == "src"
    assert any("do not travel" in note for note in read("--export=ALL", "ssh").notes)
    with pytest.raises(
        SpecError, match=r"job.sbatch:2: --export=NOT_SET_HERE: NOT_SET_HERE is not"
    ):
        read("--export=NOT_SET_HERE")


@pytest.mark.parametrize("provider", ["local", "ssh", "slurm"])
def test_a_relative_directory_is_one_of_the_project(read: Read, provider: str) -> None:
    """Other machines have a copy of it, at another path."""
    (config,) = read("-D ./", provider).configs
    assert (config.workdir, config.directory_on_node) == (".", None)
    assert read("-D /scratch/x", provider).configs[0].directory_on_node == "/scratch/x"


def test_images(read: Read) -> None:
    image = "--container-image=nvcr.io#nvidia/pytorch:24.01-py3"
    assert read(image).configs[0].image == "nvcr.io/nvidia/pytorch:24.01-py3"
    assert read(image, "slurm").configs[0].slurm == {
        "container": "pyxis",
        "image": "nvcr.io#nvidia/pytorch:24.01-py3",
    }


def test_notice_before_the_end(read: Read) -> None:
    (config,) = read("--signal=B:USR1@90 -t 60").configs
    assert (config.batch or {})["signal"] == {"signal": "USR1", "seconds": 90.0, "script": True}
    assert any("without --time" in note for note in read("--signal=USR1").notes)
    assert not read("--signal=USR1", max_run_time_hours=1).notes


@pytest.mark.parametrize("provider", ["local", "ssh", "slurm"])
def test_nothing_is_dropped_without_a_word(read: Read, provider: str) -> None:
    """Every option leads to something: of the task, of the cluster, a note, or a refusal."""
    from flowlite.spec.batch.table import HOLDS, TABLE

    some = {
        "array": "0",
        "chdir": "/x",
        "container-image": "u",
        "exclusive": "user",
        "export": "A=1",
        "gpus": "t4:1",
        "gpus-per-node": "t4:1",
        "gpus-per-task": "t4:1",
        "gres": "gpu:t4:1",
        "job-name": "j",
        "mem": "1G",
        "mem-per-cpu": "1G",
        "mem-per-gpu": "1G --gres=gpu:t4:1",
        "nodes": "2",
        "ntasks": "2",
        "ntasks-per-gpu": "2 --gres=gpu:t4:1",
        "signal": "USR1",
        "time": "5",
    }
    bare, refused = read("-Q", provider), []
    for name, option in TABLE.items():
        if name in HOLDS:
            continue
        written = f"--{name}" if option.value == "none" else f"--{name}={some.get(name, '1')}"
        try:
            found = read(written, provider)
        except SpecError as error:
            refused.append((name, str(error)))
            continue
        same = found.configs[0].to_dict() == bare.configs[0].to_dict()
        assert not same or found.notes != bare.notes or variables(found) != variables(bare), name
    assert [name for name, said in refused if f"--{name}" not in said] == []


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("--dependency=afterok:7", "cannot be honoured outside Slurm: it would start before"),
        ("--begin=16:00", "it would start at once"),
        ("--hold", "it would start at once"),
        ("--input=data", "the script would read nothing"),
        ("-N 4 -n 2", "2 tasks cannot run on 4 nodes"),
        ("-N two", "job.sbatch:2: --nodes=two: give a number"),
        ("-t tomorrow", "job.sbatch:2: 'tomorrow' is not a time"),
        ("--array=3-1", "3-1 ends before it begins"),
        ("--array=0-99999999", "more than 10000 tasks"),
        ("--array=0-3%0", "behind % stands"),
        ("--mem=lots", "give a size"),
        ("--gres=gpu:h100:many", "--gres="),
        ("-N3 --gpus=4", "cannot be dealt out to 3 nodes evenly"),
        ("--signal=USR9@10", "'USR9' is no signal"),
        ("-n0", "give a whole number of at least 1"),
    ],
)
def test_refusals(read: Read, directives: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        read(directives)
    assert message in str(raised.value)
    assert "job.sbatch" in str(raised.value)


def test_a_queue_can_wait_for_another_job(read: Read) -> None:
    (config,) = read("--dependency=afterok:7 --licenses=x:1 --requeue -x 'n[1-2]'", "slurm").configs
    assert config.slurm == {
        "sbatch": ("--dependency=afterok:7", "--licenses=x:1"),
        "requeue": True,
        "exclude": "n[1-2]",
    }


def test_lines_that_sbatch_does_not_read_are_named(read: Read) -> None:
    found = read("#!/bin/bash\n#SBATCH -N2\ntrue\n#SBATCH -t 5\n")
    assert any(":4: this #SBATCH line is not read: it stands behind" in n for n in found.notes)


def test_a_look_at_what_a_script_calls() -> None:
    assert look(
        "#!/bin/bash\n# srun --pty bash\necho srun --pty\nsrun -N 1 \\\n  --pty bash\n"
        "JOB=$(sbatch next.sh); squeue\nif true; then srun --mpi=pmix ./x; fi\n(mpirun -n 4 ./y)\n"
        'srun "open quote\npython srun.py --pty\n'
        "trap 'scontrol requeue $SLURM_JOB_ID; exit 0' USR1\nscontrol show job\n"
    ) == [
        "line 4: srun: --pty cannot be honoured: for a terminal on a node: flow ssh TASK --node N",
        "line 6: sbatch is not there outside Slurm",
        "line 7: srun: --mpi=pmix: tasks do not find each other through PMI here: each would run alone; use "
        "distributed_mode='mpi'",
        "line 8: mpirun knows the nodes only under distributed_mode='mpi'; here it starts processes on node 0 alone",
        "line 11: scontrol requeue is not there outside Slurm: nothing starts the script again when it ends with "
        "success; let it fail, with retries (--retries N)",
    ]
