"""The environment of a worker: the table, who wins, and that torchrun would say the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.system import addresses
from flowlite.node.worker.environment import (
    DEFAULT,
    FIXED,
    TABLE,
    WorkerPlace,
    is_foreign,
    path_with,
    without_launchers,
    worker_environment,
)
from tests.connect.sshd import free_port

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
STALE = {
    "RANK": "7",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "9",
    "GROUP_RANK": "3",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_RANK": "3",
    "ROLE_NAME": "x",
    "MASTER_ADDR": "10.9.9.9",
    "MASTER_PORT": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_MPI_TYPE": "pmix",
    "SLURM_NODEID": "0",
    "PMI_RANK": "0",
    "PMI_SIZE": "1",
    "PMIX_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
    "MV2_COMM_WORLD_SIZE": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "old",
    "PET_NNODES": "9",
    "NNODES": "9",
    "NPROC_PER_NODE": "9",
    "PET_STANDALONE": "1",
    "CROSS_RANK": "0",
    "LOCAL_SIZE": "4",
    "JSM_NAMESPACE_RANK": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "OMPI_MCA_ess_base_vpid": "0",
    "HOROVOD_CONTROLLER": "gloo",
    "FLOW_HOSTFILE": "/outer/hostfile",
    "FLOW_TASK_ID": "outer",
    "FLOW_NODE_RANK": "9",
    "FLOW_NODE_IPS": "1.1.1.1",
}


def place(**changes: object) -> WorkerPlace:
    values: dict[str, object] = {
        "task": "t1",
        "name": "digits",
        "attempt": 2,
        "mode": "auto",
        "node_rank": 1,
        "local_rank": 1,
        "processes_per_node": 2,
        "addresses": ("10.0.0.1", "10.0.0.2"),
        "master_addr": "10.0.0.1",
        "master_port": 29501,
        "interface": "eth7",
        "cores": 8,
        "stop_file": "/t1/stop",
        "only_cpu": True,
        "provider": "slurm",
    }
    return WorkerPlace(**{**values, **changes})  # type: ignore[arg-type]


def test_a_worker_gets_exactly_what_the_design_lists() -> None:
    assert worker_environment({}, place()) == {
        "FLOW_NODE_RANK": "1",
        "FLOW_NUM_NODES": "2",
        "FLOW_NUM_NODES_MIN": "2",
        "FLOW_NUM_NODES_MAX": "2",
        "FLOW_MAIN_IP": "10.0.0.1",
        "FLOW_TASK_ID": "t1",
        "FLOW_TASK_NAME": "digits",
        "FLOW_NODE_IPS": "10.0.0.1,10.0.0.2",
        "FLOW_ATTEMPT": "2",
        "FLOW_RESTART_COUNT": "1",
        "FLOW_PROVIDER": "slurm",
        "FLOW_STOP_FILE": "/t1/stop",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29501",
        "NCCL_SOCKET_IFNAME": "eth7",
        "GLOO_SOCKET_IFNAME": "eth7",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "ACCELERATE_USE_CPU": "true",
    }


def test_manual_mode_leaves_ranks_to_the_users_launcher() -> None:
    made = worker_environment(STALE, place(mode="manual", local_rank=0, processes_per_node=8))
    assert RANK_VARIABLES & set(made) == {"NODE_RANK"}
    assert made["NODE_RANK"] == "1"
    assert {name: value for name, value in made.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29501",
    }
    # What scripts of OpenMMLab, LLaMA-Factory and ms-swift give to their torchrun; 1 node, where it is not set.
    assert (made["NNODES"], made["NPROC_PER_NODE"]) == ("2", "8")
    one = worker_environment(STALE, place(mode="manual", local_rank=0, processes_per_node=1))
    assert one["NNODES"] == "2"
    assert "NPROC_PER_NODE" not in one


def test_a_rank_has_none_of_the_variables_for_launchers() -> None:
    """A trainer that sees them starts torchrun."""
    assert not {"NNODES", "NPROC_PER_NODE"} & set(worker_environment(STALE, place()))


@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_nothing_of_another_launcher_survives(mode: str) -> None:
    kept = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "4", "HOME": "/root", "NCCL_DEBUG": "INFO"}
    clean = worker_environment(kept, place(mode=mode))
    assert worker_environment({**STALE, **kept}, place(mode=mode)) == clean
    assert kept.items() <= clean.items()


def test_the_user_wins_over_everything_but_the_rank_variables() -> None:
    user = {
        "RANK": "0",
        "FLOW_TASK_ID": "other",
        "MASTER_PORT": "1234",
        "OMP_NUM_THREADS": "3",
        "NCCL_SOCKET_IFNAME": "ib0",
        "PATH": "/only",
        "CUDA_VISIBLE_DEVICES": "7",
        "TOKEN": "from the environment",
    }
    made = worker_environment(
        {"PATH": "/inherited", "OMP_NUM_THREADS": "5"},
        place(visible_gpus="0,1", path="/venv/bin:/inherited"),
        user,
        {"TOKEN": "from the secrets"},
    )
    assert made["RANK"] == "3"
    assert made["FLOW_TASK_ID"] == "t1"
    assert made["MASTER_PORT"] == "1234"
    assert made["OMP_NUM_THREADS"] == "3"
    assert made["NCCL_SOCKET_IFNAME"] == "ib0"
    assert made["GLOO_SOCKET_IFNAME"] == "eth7"
    assert made["PATH"] == "/only"
    assert made["CUDA_VISIBLE_DEVICES"] == "7"
    assert made["TOKEN"] == "from the secrets"


def test_accelerate_is_told_of_a_gang_without_accelerators() -> None:
    def told(**changes: object) -> str | None:
        return worker_environment({}, place(**changes)).get("ACCELERATE_USE_CPU")

    assert told() == told(mode="manual") == "true"
    assert told(only_cpu=False) is None
    assert told(addresses=("10.0.0.1",), node_rank=0, local_rank=0, processes_per_node=1) is None
    asked = worker_environment({}, place(), {"ACCELERATE_USE_CPU": "false"})
    assert asked["ACCELERATE_USE_CPU"] == "false"


def test_defaults_yield_to_what_the_node_has_set() -> None:
    made = worker_environment({"OMP_NUM_THREADS": "5", "GLOO_SOCKET_IFNAME": "bond0"}, place())
    assert made["OMP_NUM_THREADS"] == "5"
    assert made["GLOO_SOCKET_IFNAME"] == "bond0"


def test_cuda_devices_are_untouched_unless_the_node_got_some_of_the_machines() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment({}, place())
    inherited = {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert worker_environment(inherited, place())["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert worker_environment(inherited, place(visible_gpus="0"))["CUDA_VISIBLE_DEVICES"] == "0"


def test_threads_count_the_nodes_that_share_a_machine() -> None:
    local = place(addresses=("127.0.0.1",) * 4, cores=16)
    assert worker_environment({}, local)["OMP_NUM_THREADS"] == "2"
    assert worker_environment({}, local._replace(cores=1))["OMP_NUM_THREADS"] == "1"


def test_a_users_master_reaches_the_users_torchrun() -> None:
    user = {"MASTER_PORT": "4000", "MASTER_ADDR": "10.9.9.9"}
    made = worker_environment({}, place(mode="manual", local_rank=0), user)
    assert made["MASTER_PORT"] == made["PET_MASTER_PORT"] == "4000"
    assert made["MASTER_ADDR"] == made["PET_MASTER_ADDR"] == "10.9.9.9"


def test_path_starts_with_the_tasks_python() -> None:
    assert path_with("/venv/bin/python", "/usr/bin:/venv/bin:/bin") == "/venv/bin:/usr/bin:/bin"
    assert path_with("python", "/usr/bin") == "/usr/bin"
    assert path_with("/venv/bin/python", None) is not None


names = st.sampled_from(sorted({*STALE, *(row.name for row in TABLE), "HOME", "SLURM_JOB_ID"}))
environments = st.dictionaries(names, st.text("ab1", max_size=3), max_size=12)


@given(environments, environments, st.sampled_from(["auto", "manual"]))
def test_whatever_is_in_the_air_ranks_come_out_right(
    inherited: dict[str, str], user: dict[str, str], mode: str
) -> None:
    given_place = place(mode=mode)
    made = worker_environment(inherited, given_place, user)
    for row in TABLE:
        if row.strength == FIXED:
            expected = str(row.value(given_place)) if mode in row.modes else None
            assert made.get(row.name) == expected
        elif row.strength == DEFAULT and row.name not in user:
            assert made[row.name] == inherited.get(row.name, str(row.value(given_place)))
    for name in made:
        assert not is_foreign(name) or name in user or name in {row.name for row in TABLE}
    assert not set(without_launchers(inherited)) - set(made)


def test_only_a_backend_of_matplotlib_that_a_kernel_set_is_left_out() -> None:
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    assert not without_launchers(inline)
    assert without_launchers({"MPLBACKEND": "agg"}) == {"MPLBACKEND": "agg"}
    assert worker_environment({}, place(), inline)["MPLBACKEND"] == inline["MPLBACKEND"]


def test_only_colours_that_a_kernel_wants_are_left_out() -> None:
    colours = {"FORCE_COLOR": "1", "CLICOLOR": "1", "CLICOLOR_FORCE": "1"}
    kernel = {"TERM": "xterm-color", **colours}
    assert without_launchers(kernel) == {"TERM": "xterm-color"}
    for name in kernel:
        changed = {**kernel, name: "0"}
        assert without_launchers(changed) == changed, "the user has set it"
    assert worker_environment(kernel, place(), {"FORCE_COLOR": "1"})["FORCE_COLOR"] == "1"


DUMP = """
    import json, os, sys
    with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
        json.dump(dict(os.environ), file)
"""


def test_torchrun_gives_the_same_gang_the_same_variables(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "dump.py"
    script.write_text(textwrap.dedent(DUMP))
    # Not one that other gangs prefer: it takes torch seconds to listen.
    port = free_port()
    inherited = {**os.environ, **STALE}
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "PET_STANDALONE", "PET_NNODES"):
        del inherited[name]
    inherited["OMP_NUM_THREADS"] = "1"
    gang = []
    for node in range(2):
        command = (
            f"-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank {node} "
            f"--master-addr 127.0.0.1 --master-port {port}"
        ).split()
        gang.append(
            subprocess.Popen(
                [sys.executable, *command, str(script), str(tmp_path)],
                env=inherited,
                stderr=subprocess.PIPE,
            )
        )
    for agent in gang:
        _, errors = agent.communicate(timeout=250)
        assert agent.returncode == 0, errors.decode()
    differences = {}
    for rank in range(4):
        theirs = json.loads((tmp_path / str(rank)).read_text())
        ours = worker_environment(
            inherited,
            WorkerPlace(
                task="t1",
                name="n",
                attempt=1,
                mode="auto",
                node_rank=rank // 2,
                local_rank=rank % 2,
                processes_per_node=2,
                addresses=("127.0.0.1", "127.0.0.1"),
                master_addr="127.0.0.1",
                master_port=port,
                interface=addresses.interface_towards("127.0.0.1"),
                cores=os.cpu_count() or 1,
            ),
        )
        # What torchrun passes through, because it does not know it, is no statement of torchrun's.
        set_by_torchrun = {name for name in theirs if theirs[name] != inherited.get(name)}
        assert set_by_torchrun >= {"RANK", "WORLD_SIZE", "MASTER_PORT"}
        for name in set_by_torchrun & set(ours):
            if theirs[name] != ours[name]:
                differences[rank, name] = (theirs[name], ours[name])
        # And what both mean as a rank agrees, also where torchrun happened to find the right value.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
            assert theirs[name] == ours[name]
        left_over = {name for name in ours if is_foreign(name) and name in STALE} - {
            row.name for row in TABLE
        }
        assert not left_over
    assert not differences
