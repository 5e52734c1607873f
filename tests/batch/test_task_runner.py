"""The tasks of a step, as the process on their node runs them."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

from flowlite.node.sbatch.task_runner import TaskProtocol


def test_a_task_that_does_not_read_its_input_is_no_error() -> None:
    """Debian's Python 3.11.2 printed a traceback of asyncio into the output of the task."""
    told: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        transport, protocol = await loop.subprocess_exec(
            TaskProtocol, "sh", "-c", "read line; exec <&-", stdin=asyncio.subprocess.PIPE
        )
        task = asyncio.subprocess.Process(transport, protocol, loop)
        assert task.stdin is not None
        with suppress(ConnectionError):
            while True:
                task.stdin.write(b"line\n" * (1 << 18))
                await task.stdin.drain()
        await protocol.ended.wait()
        transport.close()

    asyncio.run(run())
    gc.collect()
    assert told == []
