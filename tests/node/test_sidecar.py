"""The agent's side of a sidecar, with real processes: its reports, its end, and what is told if it does not start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.sidecar import agent_side
from flowlite.node.sidecar.agent_side import Sidecar
from flowlite.node.sidecar.process_side import SidecarFailed

HEAD = "import os, sys, time\nfrom flowlite.node.sidecar.process_side import *\n"
SECONDS = 60.0


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the text that stands for the subcommand."""
    monkeypatch.setattr(
        agent_side.processes,
        "own_command",
        lambda python, what, *_, **__: [python, "-c", HEAD + what],
    )


def made(tmp_path: Path) -> Sidecar:
    return Sidecar("the process that tests", tmp_path / "log")


@pytest.mark.usefixtures("program")
class TestSidecar:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("sys.exit('broken')", "the process that tests ended at once; see .*log"),
            ("report('failed', why='no room')", "^no room$"),
            ("print('nonsense', flush=True)", "ended at once"),
        ],
    )
    def test_one_that_does_not_start_says_why(self, tmp_path: Path, text: str, said: str) -> None:
        async def run() -> None:
            sidecar = made(tmp_path)
            try:
                with pytest.raises(SidecarFailed, match=said):
                    await sidecar.start(text, seconds=SECONDS)
            finally:
                await sidecar.end(SECONDS)

        asyncio.run(run())

    def test_a_report_may_name_many_files(self, tmp_path: Path) -> None:
        async def run() -> None:
            sidecar = made(tmp_path)
            text = "report('ready'); report('found', names=['name'] * 300_000); report('last')"
            await sidecar.start(text, seconds=SECONDS)
            found: list[dict[str, Any]] = []
            over = asyncio.Event()
            sidecar.follow(found.append, over.set)
            async with asyncio.timeout(SECONDS):
                await over.wait()
            await sidecar.end(SECONDS)
            assert [len(each.get("names", ())) for each in found] == [300_000, 0]

        asyncio.run(run())

    def test_one_that_says_nothing_is_given_up_and_killed(self, tmp_path: Path) -> None:
        async def run() -> None:
            sidecar = made(tmp_path)
            with pytest.raises(SidecarFailed, match=r"did not start within 0\.2 s"):
                await sidecar.start("time.sleep(600)", seconds=0.2)
            assert not await sidecar.end(0.1)
            assert not sidecar.runs

        asyncio.run(run())

    def test_it_ends_with_the_pipe_and_its_last_reports_arrive(self, tmp_path: Path) -> None:
        text = "report('up', pid=os.getpid()); wait_for_agent(); report('last', text='x' * 30_000)"
        heard: list[dict[str, Any]] = []
        over: list[bool] = []

        async def run() -> None:
            sidecar = made(tmp_path)
            assert (await sidecar.start(text, seconds=SECONDS))["event"] == "up"
            sidecar.follow(heard.append, lambda: over.append(sidecar.runs))
            assert sidecar.followed
            assert await sidecar.end(SECONDS)

        asyncio.run(run())
        assert [each["event"] for each in heard] == ["last"]
        assert over == [False]

    def test_one_that_is_killed_is_noticed(self, tmp_path: Path) -> None:
        async def run() -> None:
            sidecar, over = made(tmp_path), asyncio.Event()
            await sidecar.start("report('up'); os.kill(os.getpid(), 9)", seconds=SECONDS)
            sidecar.follow(lambda _: None, over.set)
            await asyncio.wait_for(over.wait(), SECONDS)
            assert sidecar.runs
            await sidecar.end(SECONDS)

        asyncio.run(run())

    def test_a_request_reaches_it(self, tmp_path: Path) -> None:
        async def run() -> None:
            sidecar = made(tmp_path)
            await sidecar.start("report('up'); report('heard', text=sys.stdin.readline())")
            sidecar.send(do="check")
            assert (await sidecar.hear() or {})["text"] == '{"do": "check"}\n'
            await sidecar.end(SECONDS)

        asyncio.run(run())
