"""Preemption notices: how a node learns shortly before that its machine will be taken away, for each provider.

    {"kind": "ec2"}        the metadata service (IMDSv2): spot/instance-action, two minutes before, and the rebalance
                           recommendation, which may come earlier or never
    {"kind": "mithril"}    the file /opt/mithril/MITHRIL_SIGNAL.yml, five minutes before
    {"kind": "slurm", "file"}    a file that the step daemon writes on a signal of Slurm (node/slurm_step/notices.py)
    {"kind": "known", "after", "notice", "reason"}    known beforehand: `after` seconds from the start of the agent,
                           with `notice` seconds left then
    {"kind": "rehearsal", "after": n}    a notice n seconds after GO, without a preemption

`endpoint`, `file` and `every` in the same dictionary replace the address, the path and the polling interval (seconds).
No request waits for long, and no answer can do more than stop the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

from ..protocol.messages import DEADLINE, PREEMPTED

log = logging.getLogger("flowlite.preemption")

EVERY = 5.0
# After a preemption, no more time than Slurm's KillWait may be left.
_SLURM_EVERY = 0.5
ENDPOINT = "http://169.254.169.254"
SIGNAL_FILE = "/opt/mithril/MITHRIL_SIGNAL.yml"
_ANSWER_SECONDS = 2.0
_TOKEN_SECONDS = 21600
_MOST_BYTES = 65536
_EC2_LONGEST, _MITHRIL_LONGEST = 120.0, 300.0
_MITHRIL_STATES = {
    "STATUS_PREEMPTING": "preempted by a higher bid",
    "STATUS_RELOCATING": "to be moved to another machine",
}


class Notice(NamedTuple):
    """A notice that the machine will be taken away.

    Attributes:
        reason: Why, for users.
        seconds: How many seconds are left.
        kind: "preempted", or "deadline" if only the job's time limit is near.
    """

    reason: str
    seconds: float
    kind: str = PREEMPTED


class Answer(NamedTuple):
    """The answer of a metadata service; `date` is the service's own time (Unix)."""

    status: int
    body: str
    date: float


async def watch(
    how: Mapping[str, Any], warn: Callable[[str], None], running: asyncio.Event
) -> Notice | None:
    """Poll until there is a notice, and return it; None if flowlite knows no notices of this kind.

    Args:
        how: The kind of notice and its settings, as in the docstring of this module.
        warn: Called with warnings for users.
        running: Set when the workers are started.
    """
    kind, every = how.get("kind"), EVERY
    look: Callable[[], Awaitable[Notice | None]]
    if kind == "known":
        await asyncio.sleep(float(how["after"]))
        return Notice(str(how["reason"]), float(how["notice"]))
    if kind == "rehearsal":
        await running.wait()
        await asyncio.sleep(float(how["after"]))
        return Notice("a rehearsal of preemption", _EC2_LONGEST)
    if kind == "ec2":
        look = _Ec2(str(how.get("endpoint") or ENDPOINT), warn).look
    elif kind == "mithril":
        look = partial(_of_signal_file, str(how.get("file") or SIGNAL_FILE))
    elif kind == "slurm":
        look, every = partial(_of_step_daemon, str(how["file"])), _SLURM_EVERY
    else:
        warn(f"no way is known to learn of preemption of kind {kind!r}")
        return None
    while True:
        try:
            if (found := await look()) is not None:
                return found
        except FileNotFoundError:
            # The file comes with the notice.
            pass
        except Exception as error:
            # An invalid answer of the service must not end the polling.
            log.info("nothing is known of preemption just now: %s: %s", type(error).__name__, error)
        await asyncio.sleep(float(how.get("every") or every))


class _Ec2:
    def __init__(self, endpoint: str, warn: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._warn = warn
        self._token = ""
        self._warned = False

    async def look(self) -> Notice | None:
        action = await self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            return _of_action(action)
        if not self._warned:
            advice = await self._get("/latest/meta-data/events/recommendations/rebalance")
            if advice is not None:
                self._warned = True
                self._warn(
                    "EC2 recommends to move elsewhere: this machine is more likely than others to be taken away"
                )
        return None

    async def _get(self, path: str) -> Answer | None:
        """Returns the answer for a path of the metadata service; None if it is 404."""
        for _ in range(2):
            if not self._token:
                life = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
                answer = await request(self._endpoint, "PUT", "/latest/api/token", life)
                if answer.status != 200:
                    raise ValueError(f"the metadata service gives no token ({answer.status})")
                self._token = answer.body.strip()
            answer = await request(
                self._endpoint, "GET", path, {"X-aws-ec2-metadata-token": self._token}
            )
            if answer.status != 401:
                break
            self._token = ""
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise ValueError(f"the metadata service answers {answer.status} to {path}")
        return answer


def _of_action(answer: Answer) -> Notice:
    """Returns the notice in a spot/instance-action document. One that cannot be parsed counts as a notice, too."""
    action, seconds = "terminate", _EC2_LONGEST
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(answer.body)
        action = str(told["action"])
        # Both times are from the service, because the machine's own clock may be wrong.
        seconds = _unix(str(told["time"])) - answer.date
    return Notice(f"spot interruption ({action})", min(max(0.0, seconds), _EC2_LONGEST))


async def _of_signal_file(path: str) -> Notice | None:
    with open(path, encoding="utf-8", errors="replace") as file:
        return of_signal(file.read(_MOST_BYTES), time.time())


async def _of_step_daemon(path: str) -> Notice | None:
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    left = float(told["seconds"]) - (time.monotonic() - float(told["at"]))
    kind = DEADLINE if told["kind"] == DEADLINE else PREEMPTED
    return Notice(str(told["reason"]), max(0.0, left), kind)


def of_signal(text: str, now: float) -> Notice | None:
    """Returns the notice in Mithril's signal file; None if it has none."""
    fields = dict(re.findall(r"^\s*([a-z_]+)\s*:\s*['\"]?(.*?)['\"]?\s*$", text, re.MULTILINE))
    state = fields.get("instance_status", "")
    if state not in _MITHRIL_STATES:
        return None
    seconds = _MITHRIL_LONGEST
    with suppress(ValueError):
        seconds = _unix(fields.get("end_time", "")) - now
    return Notice(_MITHRIL_STATES[state], min(max(0.0, seconds), _MITHRIL_LONGEST))


def _unix(text: str) -> float:
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


async def request(endpoint: str, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """Send one request to a metadata service, without a proxy. Raises OSError, ValueError."""
    host, _, port = endpoint.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        host, port = endpoint.removeprefix("http://").rstrip("/"), "80"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "PUT":
        lines.append("Content-Length: 0")
    async with asyncio.timeout(_ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {
                n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:])
            }
            length = fields.get("content-length", "")
            if length.isdigit():
                body = await reader.readexactly(min(int(length), _MOST_BYTES))
            else:
                body = await reader.read(_MOST_BYTES)
        finally:
            writer.close()
    date = time.time()
    with suppress(ValueError, TypeError):
        date = parsedate_to_datetime(fields.get("date", "")).timestamp()
    return Answer(int(head[0].split()[1]), body.decode("utf-8", "replace"), date)
