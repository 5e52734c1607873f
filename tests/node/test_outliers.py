"""Which nodes are slow beside the others, from what all have measured."""

from __future__ import annotations

from statistics import median
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.protocol import messages as m
from flowlite.node.rendezvous.outliers import SLOW_CPU, SLOW_GPU, SLOW_LINK, slow_nodes, summary
from tests.node.test_rendezvous import Leader


def gpus(*speeds: float) -> dict[str, Any]:
    return {"unit": "TFLOPS", "speeds": {f"GPU {i}": speed for i, speed in enumerate(speeds)}}


def test_even_nodes_are_not_slow() -> None:
    assert slow_nodes([gpus(600, 640), gpus(620, 500)]) == []
    assert slow_nodes([{}, {}]) == []
    assert slow_nodes([gpus(600)]) == []
    cpu = {"unit": "GFLOPS", "speeds": {"CPU": 40.0}}
    assert slow_nodes([cpu, {"unit": "GFLOPS", "speeds": {"CPU": 70.0}}]) == []
    assert slow_nodes([cpu, gpus(600)]) == []


def test_one_slow_gpu_makes_its_node_slow() -> None:
    [found] = slow_nodes([gpus(600, 640), gpus(620, 210), gpus(610, 600)])
    assert found.rank == 1
    assert found.why == (
        "GPU 1 multiplies matrices at 210 TFLOPS, those of the other nodes at 612.5"
    )


def test_the_node_with_slow_paths_is_found_and_not_its_partners() -> None:
    fast, slow = 1e9, 1e8
    links = [{"1": fast, "2": slow}, {"2": slow, "3": fast}, {"3": slow}, {"0": fast}]
    [found] = slow_nodes([{"links": each} for each in links])
    assert found.rank == 2
    assert "100 MB/s with the other nodes, which have 1000 MB/s" in found.why
    # Of three nodes, only one path is not the slow node's.
    [found] = slow_nodes([{"links": {"1": slow}}, {"links": {"2": slow}}, {"links": {"0": fast}}])
    assert found.rank == 1
    # One slow path is no slow node.
    links[0]["2"] = links[2]["3"] = fast
    assert slow_nodes([{"links": each} for each in links]) == []


def test_no_node_decides_by_what_it_reports_that_others_are_slow() -> None:
    """A machine that is found slow is avoided by all tasks, so one that lies may not have others avoided."""
    honest = [gpus(600, 610), gpus(620, 600), gpus(610, 605)]
    assert slow_nodes([*honest, gpus(*[1e15] * 1000)]) == []
    paths = [{"1": 1e9, "2": 1e9}, {"2": 1e9, "3": 1e9}, {"3": 1e9, "0": 1e9}]
    for lie in (
        {str(rank): 1e15 for rank in range(4, 1000)},
        {f"{zeros}0": 1e15 for zeros in ("", "0", "00", "+", " ", "000")},
        {f"{zeros}1": 0.0 for zeros in ("0", "00", "+", " ", "000")},
        {"3": 1e15, "-1": 1e15, "x": 1e15, "": 1e15, "²": 1e15},
    ):
        assert slow_nodes([{"links": each} for each in (*paths, lie)]) == []


def test_a_speed_without_a_unit_is_compared_only_with_such() -> None:
    bare = {"speeds": {"GPU 0": 600.0}}
    assert slow_nodes([bare, {"skipped": "no torch"}]) == []
    assert slow_nodes([bare, gpus(100)]) == []
    [found] = slow_nodes([bare, {"speeds": {"GPU 0": 100.0}}])
    assert found.rank == 1


FIGURES = st.sampled_from([1.0, 10.0, 40.0, 60.0, 100.0]) | st.floats(0.0, 200.0)
NODES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "unit": st.sampled_from(["GFLOPS", "TFLOPS"]),
            "speeds": st.dictionaries(st.sampled_from("abc"), FIGURES, max_size=3),
            "links": st.dictionaries(st.sampled_from(["0", "1", "2", "3", "9", "00"]), FIGURES),
        },
    ),
    max_size=7,
)


@given(NODES)
def test_each_node_is_compared_with_the_median_of_the_others(
    prepared: list[dict[str, Any]],
) -> None:
    """As if the others were looked through anew for each node."""
    assert [each.rank for each in slow_nodes(prepared)] == (
        slow_to_compute(prepared) or slow_to_reach(prepared)
    )


def slow_to_compute(prepared: list[dict[str, Any]]) -> list[int]:
    measured = {rank: each for rank, each in enumerate(prepared) if each.get("speeds")}
    found = []
    for rank, each in measured.items():
        unit = each.get("unit", "")
        others = [
            median(other["speeds"].values())
            for number, other in measured.items()
            if number != rank and other.get("unit", "") == unit
        ]
        share = SLOW_CPU if unit == "GFLOPS" else SLOW_GPU
        if others and min(each["speeds"].values()) < share * median(others):
            found.append(rank)
    return found[:4]


def slow_to_reach(prepared: list[dict[str, Any]]) -> list[int]:
    links = [
        ({rank, int(other)}, speed)
        for rank, each in enumerate(prepared)
        for other, speed in each.get("links", {}).items()
        if other != "00" and int(other) < len(prepared) and int(other) != rank
    ]
    found = []
    for rank in range(len(prepared)):
        mine = [speed for ends, speed in links if rank in ends]
        others = [speed for ends, speed in links if rank not in ends]
        if mine and others:
            slow = [speed for speed in mine if speed < SLOW_LINK * median(others)]
            if len(slow) * 2 > len(mine):
                found.append(rank)
    return found[:4]


def test_the_summary_says_what_was_measured_and_what_was_not() -> None:
    assert summary([gpus(600), {**gpus(640), "links": {"0": 1e9}}]) == (
        "preflight: matrix products at 600 to 640 TFLOPS; 1000 MB/s between 1 pair of nodes"
    )
    both_ways = [{"links": {"1": 1e9}}, {"links": {"0": 1e9, "2": 2e9}}, {"links": {}}]
    assert summary(both_ways) == "preflight: 1000 to 2000 MB/s between 2 pairs of nodes"
    assert summary([{"skipped": "no torch"}] * 2) == "preflight: no torch"
    assert summary([{}]) == ""


def test_the_leader_stops_before_go_and_names_the_slow_node() -> None:
    leader = Leader()
    leader.join(0)
    leader.join(1)
    leader.say(0, "ready", facts=gpus(600))
    leader.say(1, "ready", facts=gpus(100))
    assert leader.machine.outcome == m.SICK
    assert leader.machine.reason.startswith("node 1 (i-b): GPU 0 multiplies matrices at 100 TFLOPS")
    assert "go" not in leader.heard(0)
