"""How nodes learn that they will be taken away, and what the gang agrees on."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.preemption import notices as preemption
from flowlite.node.preemption.notices import Notice, of_signal, watch
from flowlite.node.protocol.messages import DEADLINE, DONE, FAILED, LOST, PREEMPTED
from flowlite.node.rendezvous.stop_vote import LEAST_GRACE, MARGIN, Hold, Resume, StopNow, Vote

HOUR = 3600.0


class Metadata(ThreadingHTTPServer):
    """A metadata service whose clock is an hour off; `paths` is what it has."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.skew = HOUR
        self.now = 1_700_000_000.0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        self._answer(200, self._new_token())

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            self._answer(401, "")
        elif self.path in self.server.paths:
            self._answer(200, self.server.paths[self.path])
        else:
            self._answer(404, "<html/>")

    def _new_token(self) -> str:
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        token = f"token{len(self.server.tokens)}"
        self.server.tokens.add(token)
        return token

    def _answer(self, status: int, body: str) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(self.server.now + self.server.skew, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


ACTION = "/latest/meta-data/spot/instance-action"
ADVICE = "/latest/meta-data/events/recommendations/rebalance"


def watched(how: dict[str, Any], after: Any = None) -> tuple[list[Notice], list[str]]:
    """Watches until there is notice, doing something after the first looks."""
    notices: list[Notice] = []
    warnings: list[str] = []

    async def follow() -> None:
        watching = asyncio.create_task(watch(how, warnings.append, asyncio.Event()))
        if after is not None:
            await asyncio.sleep(0.1)
            after()
        async with asyncio.timeout(60):
            if (found := await watching) is not None:
                notices.append(found)

    asyncio.run(follow())
    return notices, warnings


def iso(unix: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(unix, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_an_end_that_is_known_beforehand_is_told_in_time() -> None:
    how = {"kind": "known", "after": 0.05, "notice": 120.0, "reason": "its capacity block ends"}
    notices, warnings = watched(how)
    assert notices == [Notice("its capacity block ends", 120.0)]
    assert warnings == []


class TestEc2:
    def how(self, metadata: Metadata) -> dict[str, Any]:
        return {"kind": "ec2", "endpoint": metadata.endpoint, "every": 0.02}

    def test_notice_is_measured_by_the_clock_of_the_service(self, metadata: Metadata) -> None:
        def interrupt() -> None:
            time = iso(metadata.now + metadata.skew + 90)
            metadata.paths[ACTION] = json.dumps({"action": "terminate", "time": time})

        notices, _ = watched(self.how(metadata), interrupt)
        assert notices == [Notice("spot interruption (terminate)", 90.0)]

    def test_a_token_that_has_lapsed_is_replaced(self, metadata: Metadata) -> None:
        def interrupt() -> None:
            metadata.tokens.clear()
            metadata.tokens.add("of somebody else")
            metadata.paths[ACTION] = "not JSON"

        notices, _ = watched(self.how(metadata), interrupt)
        assert [notice.seconds for notice in notices] == [120.0]

    def test_a_recommendation_is_told_once_and_stops_nothing(self, metadata: Metadata) -> None:
        metadata.paths[ADVICE] = '{"noticeTime": "2026-01-01T00:00:00Z"}'

        def interrupt() -> None:
            metadata.paths[ACTION] = '{"action": "stop"}'

        notices, warnings = watched(self.how(metadata), interrupt)
        assert len(warnings) == 1
        assert "recommends" in warnings[0]
        assert notices == [Notice("spot interruption (stop)", 120.0)]

    def test_a_service_that_does_not_answer_is_asked_again(self, metadata: Metadata) -> None:
        real = metadata.endpoint
        how = {"kind": "ec2", "endpoint": "http://127.0.0.1:9", "every": 0.02}

        async def follow() -> None:
            watching = asyncio.create_task(watch(how, lambda _: None, asyncio.Event()))
            await asyncio.sleep(0.1)
            assert not watching.done()
            watching.cancel()

        asyncio.run(follow())
        assert real


class TestMithril:
    def test_a_signal(self) -> None:
        text = f"instance_status: 'STATUS_PREEMPTING'\nend_time: \"{iso(1000)}\"\n"
        assert of_signal(text, 880.0) == Notice("preempted by a higher bid", 120.0)

    def test_to_be_moved(self) -> None:
        found = of_signal("instance_status: STATUS_RELOCATING\nbid_status: Relocating\n", 0.0)
        assert found == Notice("to be moved to another machine", 300.0)

    @given(st.text(), st.floats(0, 4e9))
    def test_whatever_is_in_the_file_nothing_breaks(self, text: str, now: float) -> None:
        for found in (
            of_signal(text, now),
            of_signal(f"instance_status: STATUS_PREEMPTING\nend_time: {text}", now),
        ):
            assert found is None or 0 <= found.seconds <= 300

    def test_the_file_comes_later(self, tmp_path: Path) -> None:
        file = tmp_path / "SIGNAL.yml"
        how = {"kind": "mithril", "file": str(file), "every": 0.02}
        notices, _ = watched(how, lambda: file.write_text("instance_status: STATUS_PREEMPTING\n"))
        assert notices[0].reason == "preempted by a higher bid"


def test_a_kind_that_is_not_known_is_said(tmp_path: Path) -> None:
    notices, warnings = watched({"kind": "magic"})
    assert notices == []
    assert "magic" in warnings[0]


def test_nothing_is_asked_of_a_proxy(monkeypatch: pytest.MonkeyPatch, metadata: Metadata) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    answer = asyncio.run(preemption.request(metadata.endpoint, "GET", "/x", {}))
    assert answer.status == 401


# The vote


def test_nobody_calls_so_the_signal_goes_out_at_once_with_all_that_is_left() -> None:
    vote = Vote(grace=10, after_stop=20)
    assert isinstance(vote.notice(PREEMPTED, "why", 120, now=0), Hold)
    vote.tell(0, 0, [])
    assert vote.step([0, 1], 0.1) is None
    vote.tell(1, 0, [])
    assert vote.step([0, 1], 1.0) == StopNow(120 - 1 - 20 - MARGIN)
    assert vote.step([0, 1], 2.0) is None


def test_all_wait_and_the_latest_call_is_the_one() -> None:
    vote = Vote(grace=10, after_stop=0)
    vote.notice(PREEMPTED, "why", 120, now=0)
    vote.tell(0, 2, [7])
    vote.tell(1, 1, [9])
    assert vote.step([0, 1], 1.0) is None
    vote.tell(0, 2, [7, 8])
    assert vote.step([0, 1], 1.0) == Resume(9)
    assert vote.step([0, 1], 100.0) is None
    assert vote.step([0, 1], 107.5) == StopNow(120 - 107.5 - MARGIN)


def test_too_little_time_for_a_vote() -> None:
    assert Vote(10, 20).notice(PREEMPTED, "why", 24, now=0) == StopNow(24 / 2 - MARGIN)
    assert Vote(10, 20).notice(PREEMPTED, "why", 0, now=0) == StopNow(LEAST_GRACE)


def test_a_copy_that_may_take_long_leaves_time_to_stop() -> None:
    vote = Vote(grace=10, after_stop=300)
    assert vote.notice(PREEMPTED, "why", 120, now=0) == Hold(120 - 60 - 10 - MARGIN)


def test_the_notices_of_other_nodes_take_no_time_from_the_copy() -> None:
    vote = Vote(grace=10, after_stop=50)
    assert vote.notice(PREEMPTED, "node 0", 120, now=0) == Hold(120 - 50 - 10 - MARGIN)
    # The same preemption, as other nodes learn of it, a little later and with other clocks.
    assert vote.notice(PREEMPTED, "node 1", 90.5, now=30) is None
    assert vote.notice(PREEMPTED, "node 2", 63.5, now=56) is None
    assert vote.step([0, 1, 2], 56.8) is None
    assert vote.step([0, 1, 2], 57.0) == StopNow(119.5 - 57 - 49.5 - MARGIN)


def test_a_shorter_notice_takes_its_time_from_the_copy_too() -> None:
    vote = Vote(grace=10, after_stop=50)
    vote.notice(PREEMPTED, "node 0", 120, now=0)
    assert vote.notice(PREEMPTED, "node 1", 40, now=10) is None
    assert vote.step([0, 1], 16.8) is None
    assert vote.step([0, 1], 17.0) == StopNow(50 - 17 - 20 - MARGIN)


def test_at_a_deadline_nobody_is_stopped_by_the_vote() -> None:
    vote = Vote(10, 0)
    assert isinstance(vote.notice(DEADLINE, "time", 60, now=0), Hold)
    vote.tell(0, 0, [])
    assert vote.step([0], 1.0) == Resume(None)
    assert vote.step([0], 59.0) is None
    assert isinstance(vote.notice(PREEMPTED, "spot", 50, now=2.0), Hold)
    vote.tell(0, 0, [])
    assert vote.step([0], 3.0) == StopNow(50 - 1 - MARGIN)


def test_what_counts_against_a_task() -> None:
    vote = Vote(10, 0)
    usual = (DONE, FAILED, LOST, DEADLINE)
    assert [vote.outcome(each, 0.0) for each in usual] == [*usual]
    vote.notice(PREEMPTED, "why", 120, now=0)
    found = [vote.outcome(each, 0.0) for each in usual]
    assert found == [DONE, PREEMPTED, PREEMPTED, DEADLINE]
    vote.tell(0, 1, [3])
    vote.step([0], 1.0)
    assert vote.outcome(DONE, 0.0) == PREEMPTED


class Rank:
    """A worker as `flowlite.in_worker.should_stop` has it: it counts, and waits while its node holds."""

    def __init__(self) -> None:
        self.calls = 0
        self.waits = False
        self.told_at = 0

    def call(self, holds: bool, decided: int | None) -> None:
        if not self.waits:
            self.calls += 1
        self.waits = holds
        if not holds and decided is not None and self.calls >= decided and not self.told_at:
            self.told_at = self.calls


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_the_order_all_ranks_are_told_at_the_same_call(seed: int) -> None:
    draw = random.Random(seed)
    nodes = [[Rank() for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 4))]
    everybody = [(n, rank) for n, ranks in enumerate(nodes) for rank in ranks]
    vote = Vote(1, 0)
    holds = [False] * len(nodes)
    decided: list[int | None] = [None] * len(nodes)
    messages: list[tuple[int, Any]] = []
    for _ in range(draw.randrange(30)):
        n, rank = draw.choice(everybody)
        rank.call(holds[n], decided[n])
    step = vote.notice(PREEMPTED, "why", 1000, now=0)
    assert isinstance(step, Hold)
    messages = [(n, step) for n in range(len(nodes))]
    for tick in range(3000):
        if all(rank.told_at for _, rank in everybody):
            break
        if messages and draw.random() < 0.3:
            # Messages to one node keep their order; those to others overtake.
            first = {n: i for i, (n, _) in reversed(list(enumerate(messages)))}
            n, message = messages.pop(first[draw.choice(sorted(first))])
            holds[n] = isinstance(message, Hold)
            decided[n] = message.call if isinstance(message, Resume) else None
        n, rank = draw.choice(everybody)
        rank.call(holds[n], decided[n])
        if holds[n] and draw.random() < 0.5:
            callers = [r for r in nodes[n] if r.calls]
            vote.tell(n, len(callers), [r.calls for r in callers if r.waits])
            follows = vote.step(range(len(nodes)), tick / 1000)
            if isinstance(follows, StopNow):
                # Only where nobody had ever called.
                assert not any(r.waits for _, r in everybody)
                return
            if follows is not None:
                messages += [(n, follows) for n in range(len(nodes))]
    assert len({rank.told_at for _, rank in everybody}) == 1
    assert vote.decided == everybody[0][1].told_at
