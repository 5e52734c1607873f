"""What launchers of MPI are told, and what our stand-in for ssh makes of what they say. No process is started."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import SpecError
from flowlite.node.config import launcher_programs
from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.leader_run import mpi, ray_cluster, requirements
from flowlite.node.leader_run.context import GangContext, node_named
from flowlite.node.leader_run.exec_framing import Broken, Frames
from flowlite.node.leader_run.ssh_shim import RemoteCommand, read
from flowlite.node.protocol.mux_framing import OUT, frame
from flowlite.node.system import addresses as net
from flowlite.spec import TaskConfig

RAY: dict[str, Any] = {
    "python": "/p",
    "gpus": 0,
    "cores": 2,
    "ports": {"metrics-export-port": 4003},
    "temporary": "/tmp/r",
}
NODES = ("10.0.0.1", "10.0.0.2")


def place(
    mode: str = "mpi",
    argv: Sequence[str] | None = ("python", "train.py"),
    addresses: Sequence[str] = NODES,
    rank: int = 0,
    **config: Any,
) -> GangContext:
    """A node of a gang of two, with two processes each."""
    call = {"kind": "function"} if argv is None else {"kind": "command", "argv": list(argv)}
    made = AgentConfig(
        task="t1",
        name="n",
        attempt=1,
        instance=f"i{rank}",
        roster=["i0", "i1"],
        processes_per_node=2,
        call=call,
        mode=mode,
        **config,
    )
    return GangContext(
        made, AttemptPaths(Path("/node/a1")), tuple(addresses), ("10.0.0.1", 4000), 8
    )


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        (["10.0.0.2", "orted", "-mca", "x"], RemoteCommand("10.0.0.2", "orted -mca x")),
        (
            ["-x", "10.0.0.2", "PATH=/a:$PATH ; orted"],
            RemoteCommand("10.0.0.2", "PATH=/a:$PATH ; orted"),
        ),
        (["-o", "StrictHostKeyChecking=no", "-p", "22", "h", "true"], RemoteCommand("h", "true")),
        (["-oBatchMode=yes", "-p22", "h", "true"], RemoteCommand("h", "true")),
        (["-l", "me", "-n", "h", "cat"], RemoteCommand("h", "cat", silent=True)),
        (["h", "-p", "12345", "ls", "-l"], RemoteCommand("h", "ls -l")),
        (["h", "--", "-odd"], RemoteCommand("h", "-odd")),
        (["-tt", "me@h"], RemoteCommand("me@h", "")),
        (["ssh://me@h/", "true"], RemoteCommand("me@h", "true")),
        (["-L", "1:2:3", "h"], RemoteCommand("h", "", refused="forward ports")),
        (["-fN", "h"], RemoteCommand("h", "", refused="go into the background (-f, -N)")),
        (["-N", "h"], RemoteCommand("h", "", refused="go into the background (-f, -N)")),
        (["-Z", "h"], RemoteCommand("h", "", refused="know the option -Z")),
    ],
)
def test_arguments_are_read_as_ssh_reads_them(arguments: list[str], wish: RemoteCommand) -> None:
    assert read(arguments) == wish


@pytest.mark.parametrize("arguments", [[], ["-V"], ["-p", "22"]])
def test_without_a_host_nobody_is_meant(arguments: list[str]) -> None:
    assert read(arguments) is None


@pytest.mark.parametrize(
    ("host", "rank"),
    [
        ("10.0.0.1", 0),
        ("10.0.0.2", 1),
        ("me@10.0.0.2", 1),
        ("flow-node-1", 1),
        ("flow-node-2", None),
        ("flow-node-", None),
        ("github.com", None),
        ("10.0.0.20", None),
    ],
)
def test_hosts_are_nodes_by_address_or_rank(host: str, rank: int | None) -> None:
    assert node_named(host, NODES) == rank


def test_nodes_of_one_machine_have_names_of_their_own() -> None:
    one = place(addresses=("127.0.0.1", "127.0.0.1"))
    assert [one.node(host) for host in one.hosts] == [0, 1]
    assert mpi.environment(one, "/d")["OMPI_MCA_btl"] == "self,tcp"
    assert "OMPI_MCA_btl" not in mpi.environment(place(), "/d")


@pytest.mark.parametrize(
    "command",
    [
        ["mpirun", "python", "t.py"],
        ["/usr/bin/mpiexec", "-n", "4", "a.out"],
        ["horovodrun", "-np", "4", "python", "t.py"],
        ["deepspeed", "--hostfile", "h", "t.py"],
        ["env", "X=1", "mpirun", "a.out"],
        ["env", "X=1", "./run.sh"],
        ["nohup", "bash", "-c", "mpirun ./a.out"],
        ["sh", "-c", "cd work && mpirun -n 4 ./a.out"],
        ["bash", "run.sh"],
        ["./run.sh"],
        ["sh", "-c", "./run.sh --fast"],
    ],
)
def test_a_command_that_starts_the_ranks_runs_once(command: list[str]) -> None:
    assert launcher_programs.starts_ranks(command)
    assert mpi.command(place(argv=command)) is None


@pytest.mark.parametrize(
    "command", [["python", "train.py"], ["./a.out"], ["sh", "-c", "python train.py"]]
)
def test_any_other_command_is_started_by_mpirun_on_all_slots(command: list[str]) -> None:
    words = mpi.command(place(argv=command))
    assert words is not None
    assert words[:3] == ["mpirun", "-n", "4"]
    assert words[-len(command) :] == command


def test_a_function_is_started_by_mpirun() -> None:
    words = mpi.command(place(argv=None))
    assert words is not None
    assert words[:3] == ["mpirun", "-n", "4"]
    assert "flow-rank" in words[-1]


def test_every_launcher_is_led_to_our_stand_in() -> None:
    told = mpi.environment(place(), "/node/a1")
    shell = "/node/a1/bin/ssh"
    assert told["FLOW_HOSTFILE"] == "/node/a1/hostfile"
    # The daemons of Open MPI get its variables, and look for the program on their own nodes.
    assert told["OMPI_MCA_plm_rsh_agent"] == told["PRTE_MCA_plm_ssh_agent"] == "ssh"
    assert {name for name, value in told.items() if value == shell} == {
        "HYDRA_LAUNCHER_EXEC",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
    }
    assert mpi.machinefile(place()) == "10.0.0.1:2\n10.0.0.2:2\n"


def test_the_users_own_settings_win() -> None:
    told = mpi.environment(place(environment={"OMPI_MCA_plm": "slurm"}), "/d")
    assert "OMPI_MCA_plm" not in told


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            (3, 4, 1, 2),
        ),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            (2, 4, 0, 2),
        ),
        ({"PMI_RANK": "2"}, None),
        ({}, None),
    ],
)
def test_ranks_of_each_kind_of_mpi(
    environment: dict[str, str], ranks: tuple[int, int, int, int] | None
) -> None:
    assert mpi.ranks(environment) == ranks


def test_networks_are_found_by_their_addresses() -> None:
    assert net.network_of(["127.0.0.1", "127.0.3.9"]) == "127.0.0.0/8"
    assert net.network_of(["198.51.100.7", "127.0.0.1"]) is None
    assert net.network_of(["fe80::1"]) is None


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}
    said = requirements.missing_mpi(place(environment=nothing).config)
    assert "there is no mpirun on the PATH of node 0" in said
    assert "apt-get install openmpi-bin" in said
    assert "no MPI is installed here" in requirements.missing_mpi(
        place(rank=1, environment=nothing).config
    )
    run = place(environment=nothing, argv=[str(tmp_path / "horovodrun"), "-np", "4", "python"])
    assert f"there is no {tmp_path}/horovodrun on node 0" in requirements.missing_mpi(run.config)
    (tmp_path / "horovodrun").touch(0o755)
    assert requirements.missing_mpi(run.config) == ""
    there = tmp_path / "mpirun"
    there.touch(0o755)
    assert requirements.missing_mpi(place(environment=nothing).config) == ""


def test_ray_is_told_what_was_asked_for() -> None:
    words = ray_cluster.start_command(
        place("ray"),
        ("head", "4001", "4002"),
        **{**RAY, "gpus": 3, "cores": 5},
    )
    assert words[:2] == ["/p", "-c"]
    assert "--metrics-export-port=4003" in words
    assert {"--head", "--port=4001", "--include-dashboard=false", "--num-cpus=5"} <= set(words)
    assert {"--num-gpus=3", "--node-ip-address=10.0.0.1", "--temp-dir=/tmp/r"} <= set(words)
    assert words[3:5] == ["4002", "start"]


def test_ray_joins_the_head() -> None:
    node = place("ray", addresses=("127.0.0.1", "127.0.0.1"), rank=1)
    words = ray_cluster.start_command(node, ("join", "127.0.0.1:4001"), **RAY)
    assert words[3:5] == ["", "start"]
    assert "--address=127.0.0.1:4001" in words
    assert "--head" not in words


@pytest.mark.parametrize(
    ("asked", "cores", "told"), [(None, 8, 8), (4, 8, 4), (None, 1, 2), (1, 8, 2)]
)
def test_ray_has_a_cpu_for_each_process(asked: float | None, cores: int, told: int) -> None:
    node = place("ray", gang={"cpus": asked})
    assert (
        ray_cluster.cores_of(GangContext(node.config, node.paths, NODES, node.relay, cores)) == told
    )


def test_sockets_of_ray_have_short_paths() -> None:
    # Ray adds "/session_2025-01-01_01-01-01_123456_1234567/sockets/plasma_store.1".
    assert len(ray_cluster.temporary_of(Path("/a/long/way" * 20))) + 68 < 104


def test_frames_come_whole_or_are_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one, other = Frames(ours), Frames(theirs)
        one.send(OUT, b"x" * 70_000)
        one.send(OUT)
        assert other.read() == (OUT, b"x" * 70_000)
        assert other.read() == (OUT, b"")
        theirs.sendall(b"Z" + b"\xff" * 10)
        with pytest.raises(Broken):
            one.read()
        ours.sendall(frame(OUT, 1, b"abcde")[:12])
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(Broken, match="cut off"):
            other.read()


def test_a_fork_is_refused_under_mpirun() -> None:
    with pytest.raises(SpecError, match="'fork' does not go with distributed_mode 'mpi'"):
        TaskConfig(distributed_mode="mpi", start="fork")


@pytest.mark.parametrize("mode", ["ray", "mpi"])
def test_where_node_0_leads_one_worker_runs_on_each_node(mode: Any) -> None:
    config = TaskConfig(distributed_mode=mode, num_instances=2, processes_per_node=4)
    assert (config.workers_per_node, config.total_processes) == (1, 2)
