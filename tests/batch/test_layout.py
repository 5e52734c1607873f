"""Which task runs where, and what hosts are called."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.sbatch import hostlist, slurm_environment
from flowlite.node.sbatch.filename_patterns import Names, fill, is_of_a_task
from flowlite.node.sbatch.layout import LayoutError, StepRequest, per_node_of, place

sizes = st.integers(1, 12)


@given(sizes, sizes)
def test_the_step_of_the_whole_gang_gives_task_n_to_rank_n(nodes: int, per_node: int) -> None:
    counts = per_node_of(nodes, None, per_node)
    tasks = place(StepRequest(), counts, [0] * nodes).tasks()
    assert [(t.id, t.node * per_node + t.local) for t in tasks] == [
        (n, n) for n in range(nodes * per_node)
    ]
    assert all(task.step_node == task.node for task in tasks)


@given(sizes, st.integers(1, 100))
def test_tasks_are_dealt_out_evenly_and_each_once(nodes: int, tasks: int) -> None:
    found = place(StepRequest(tasks=tasks), [1] * nodes, [0] * nodes).tasks()
    assert [task.id for task in found] == list(range(tasks))
    assert len({(task.node, task.local) for task in found}) == tasks
    loads = Counter(task.node for task in found)
    assert max(loads.values()) - min(loads.values()) <= 1
    assert len(loads) == min(nodes, tasks)
    assert [task.node for task in found] == sorted(task.node for task in found)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.data())
def test_a_small_step_takes_idle_nodes(busy: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, len(busy)))
    found = place(StepRequest(nodes=wanted), [1] * len(busy), busy)
    assert sorted(busy[node] for node in found.nodes) == sorted(busy)[:wanted]
    assert list(found.nodes) == sorted(found.nodes)


@pytest.mark.parametrize(
    ("nodes", "tasks", "per_node", "counts"),
    [
        (2, None, None, [1, 1]),
        (2, None, 4, [4, 4]),
        (3, 4, None, [2, 1, 1]),
        (2, 5, 4, [3, 2]),
        (1, 8, None, [8]),
    ],
)
def test_tasks_of_a_job(
    nodes: int, tasks: int | None, per_node: int | None, counts: list[int]
) -> None:
    assert per_node_of(nodes, tasks, per_node) == counts


@pytest.mark.parametrize(
    ("wish", "counts"),
    [
        (StepRequest(nodes=1), {0: 2}),
        (StepRequest(nodes=1, tasks=1), {0: 1}),
        (StepRequest(per_node=1), {0: 1, 1: 1, 2: 1}),
        (StepRequest(tasks=4, per_node=2), {0: 2, 1: 2}),
        (StepRequest(within=(1, 2)), {1: 2, 2: 2}),
        (StepRequest(within=(2,), tasks=1), {2: 1}),
        (StepRequest(nodes=2, tasks=1), {0: 1}),
    ],
)
def test_steps_of_three_nodes_with_two_tasks_each(
    wish: StepRequest, counts: dict[int, int]
) -> None:
    found = place(wish, [2, 2, 2], [0, 0, 0])
    assert dict(zip(found.nodes, found.counts, strict=True)) == counts


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (StepRequest(nodes=4), "4 nodes are asked for, and there are 3"),
        (StepRequest(nodes=2, within=(0,)), "2 nodes are asked for, and there are 1"),
        (StepRequest(nodes=2, tasks=9, per_node=2), "9 tasks do not fit on 2 nodes"),
    ],
)
def test_what_does_not_fit_is_refused(wish: StepRequest, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        place(wish, [2, 2, 2], [0, 0, 0])
    with pytest.raises(LayoutError, match="cannot run on 4 nodes"):
        per_node_of(4, 3, None)
    with pytest.raises(LayoutError, match="do not fit on 2 nodes with 1 tasks each"):
        per_node_of(2, 3, 1)


# Hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-11,20]-ib", ["node08-ib", "node09-ib", "node10-ib", "node11-ib", "node20-ib"]),
        ("a[1-2],b,c[3]", ["a1", "a2", "b", "c3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("", []),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert hostlist.expand(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a]", "n[[1]]", "n[1-999999999]", "n[1-]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(hostlist.HostlistError):
        hostlist.expand(text)


names = st.from_regex(r"[a-z]{1,3}[0-9]{0,4}", fullmatch=True)


@given(st.lists(names, max_size=20))
def test_a_list_that_was_compressed_is_the_same_again(hosts: list[str]) -> None:
    assert hostlist.expand(hostlist.compress(hosts)) == hosts


def test_compressed_lists_are_short() -> None:
    assert hostlist.compress([f"node{n:02d}" for n in (8, 9, 10, 12)]) == "node[08-10,12]"
    assert hostlist.compress(["10.0.0.1", "10.0.0.2"]) == "10.0.0.1,10.0.0.2"
    assert hostlist.compress(["n9", "n10", "n011"]) == "n[9-10,011]"
    assert hostlist.repeated([4, 4, 2]) == "4(x2),2"


def test_nodes_of_one_machine_have_names_of_their_own() -> None:
    assert slurm_environment.node_names(["10.0.0.1", "10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    assert slurm_environment.node_names(["127.0.0.1"] * 3) == [
        "127.0.0.1",
        "127.0.0.2",
        "127.0.0.3",
    ]
    many = slurm_environment.node_names(["127.0.0.1"] * 300)
    assert len(set(many)) == 300
    assert many[254:257] == ["127.0.0.255", "127.0.1.0", "127.0.1.1"]


# Variables


@given(sizes, sizes)
def test_variables_of_tasks_agree_with_the_ranks(nodes: int, per_node: int) -> None:
    tasks = place(StepRequest(), [per_node] * nodes, [0] * nodes).tasks()
    hosts = [f"10.0.0.{n}" for n in range(nodes)]
    for task in tasks:
        found = slurm_environment.of_task(task, tasks, step=0, names=hosts, pid=1, per_node=None)
        assert found["RANK"] == found["SLURM_PROCID"] == str(task.id)
        assert found["LOCAL_RANK"] == found["SLURM_LOCALID"] == str(task.id % per_node)
        assert found["NODE_RANK"] == found["SLURM_NODEID"] == str(task.id // per_node)
        assert found["WORLD_SIZE"] == found["SLURM_NTASKS"] == str(nodes * per_node)
        assert found["LOCAL_WORLD_SIZE"] == str(per_node)
        assert found["SLURMD_NODENAME"] == hosts[task.node]
        gtids = [int(each) for each in found["SLURM_GTIDS"].split(",")]
        assert gtids == [t.id for t in tasks if t.node == task.node]


def test_variables_of_a_script() -> None:
    found = slurm_environment.of_script(
        {"variables": {"SLURM_JOB_NAME": "clip"}},
        job="1234567",
        names=["10.0.0.5", "10.0.0.6"],
        counts=[2, 1],
        directory="/work",
        cores=8,
        attempt=2,
        pid=99,
    )
    assert found["SLURM_JOB_ID"] == found["SLURM_JOBID"] == "1234567"
    assert found["SLURM_JOB_NODELIST"] == "10.0.0.5,10.0.0.6"
    assert (found["SLURM_NNODES"], found["SLURM_NTASKS"]) == ("2", "3")
    assert found["SLURM_TASKS_PER_NODE"] == "2,1"
    assert found["SLURM_RESTART_COUNT"] == "1"
    assert found["SLURM_JOB_NAME"] == "clip"
    assert found["SLURM_PROCID"] == found["SLURM_LOCALID"] == found["SLURM_NODEID"] == "0"
    assert not set(slurm_environment.RANKS) & set(found)


def test_what_a_script_exports_reaches_its_tasks() -> None:
    before = {"HOME": "/root", "PATH": "/a1/slurm:/bin", "GONE": "1", "KEPT": "x"}
    after = {"HOME": "/root", "PATH": "/conda:/a1/slurm:/bin", "KEPT": "x", "NEW": "2"}
    changed, removed = slurm_environment.changes(before, after)
    assert changed == {"PATH": "/conda:/a1/slurm:/bin", "NEW": "2"}
    assert removed == ["GONE"]
    other = {"HOME": "/home/ada", "PATH": "/b7/slurm:/bin", "GONE": "1", "KEPT": "x", "FLOW": "9"}
    found = slurm_environment.of_process(
        other, changed, removed, {"RANK": "3"}, {"/a1/slurm": "/b7/slurm"}
    )
    assert found == {
        "HOME": "/home/ada",
        "PATH": "/conda:/b7/slurm:/bin",
        "KEPT": "x",
        "FLOW": "9",
        "NEW": "2",
        "RANK": "3",
    }


def test_job_numbers_are_numbers() -> None:
    assert slurm_environment.job_number("tabc") == slurm_environment.job_number("tabc")
    assert 1_000_000 <= int(slurm_environment.job_number("tabc")) < 10_000_000
    assert slurm_environment.job_number("tabc") != slurm_environment.job_number("tabd")


def test_patterns_of_files() -> None:
    own = {"SLURM_JOB_NAME": "clip", "USER": "ada", "SLURM_ARRAY_TASK_ID": "3"}
    names_ = Names("77", "2", "5", "1", "10.0.0.2", own)
    assert fill("%x-%j.%s-%t-%n-%N-%u-%a-%%", names_) == "clip-77.2-5-1-10.0.0.2-ada-3-%"
    assert fill("%J-%4t", names_) == "77.2-0005"
    assert fill("a\\%j", names_) == "a%j"
    assert is_of_a_task("out-%t")
    assert not is_of_a_task("out-%j")
