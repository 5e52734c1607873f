"""Plain calls outside of a gang run with a world of one, and leave the environment as it was."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowlite import FlowApp
from flowlite.in_worker.on_node import on_a_node

app = FlowApp()
NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("FLOW_NODE_RANK", "FLOW_NUM_NODES", "FLOW_TASK_ID", "FLOW_TASK_NAME"),
)


@app.function(num_instances=2)
def seen(fail: bool = False) -> list[str | None]:
    if fail:
        raise ValueError("no")
    return [os.environ.get(name) for name in NAMES]


@app.function
def outer() -> tuple[list[str | None], list[str | None], str]:
    port = os.environ["MASTER_PORT"]
    inner = seen.local()
    assert os.environ["MASTER_PORT"] == port
    return inner, [os.environ.get(name) for name in NAMES], os.environ["MASTER_ADDR"]


@app.function
async def later() -> str:
    await asyncio.sleep(0)
    return os.environ["WORLD_SIZE"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def world(name: str) -> list[str | None]:
    return ["0", "0", "1", "1", "0", "0", "1", "local", name]


def test_a_plain_call_and_local() -> None:
    before = dict(os.environ)
    assert seen() == seen.local() == world("seen")
    assert dict(os.environ) == before


def test_an_exception_puts_all_back() -> None:
    os.environ["MASTER_ADDR"] = "mine"
    before = dict(os.environ)
    try:
        with pytest.raises(ValueError, match="no"):
            seen(True)
        assert dict(os.environ) == before
    finally:
        del os.environ["MASTER_ADDR"]


def test_calls_in_one_another_share_the_world() -> None:
    before = dict(os.environ)
    assert outer() == (world("outer"), world("outer"), "127.0.0.1")
    assert dict(os.environ) == before


def test_a_coroutine_has_it_while_it_runs() -> None:
    before = dict(os.environ)
    assert asyncio.run(later()) == "1"
    assert dict(os.environ) == before


def test_ranks_that_another_launcher_gave_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert seen()[0] == "3"
    assert seen()[2] is None


def test_it_is_no_node() -> None:
    @app.function
    def asks() -> bool:
        return on_a_node()

    assert asks() is False


def test_a_process_group_of_one() -> None:
    dist = pytest.importorskip("torch.distributed")

    @app.function(num_instances=2)
    def size() -> int:
        dist.init_process_group("gloo")
        try:
            return int(dist.get_world_size())
        finally:
            dist.destroy_process_group()

    assert size() == 1
