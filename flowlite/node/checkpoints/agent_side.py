"""The agent's side of checkpoints; a sidecar does the copying (`sidecar.py`).

Before GO the newest complete set is restored. From GO on, finished files are copied. When all workers have ended, for
any reason, there is one more copy, within `final_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..mount_namespace.mount_points import is_mount_point
from ..sidecar.agent_side import Sidecar
from ..sidecar.process_side import SidecarFailed
from ..system import ownership
from ..system.atomic_files import write_atomically
from ..system.byte_sizes import human_size

NAME = "checkpoint"
_PRIVATE_DIRECTORY = "checkpoint"
_END_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0

log = logging.getLogger("flowlite.checkpoints")

Tell = Callable[[str, str], None]
"""Reports something to the user: its kind ("warning" or "checkpoint"), and the text."""


class CheckpointError(SidecarFailed):
    """Checkpoints cannot be copied or restored; the text is for people."""


class Checkpoints:
    """The checkpoints of one node in one attempt."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths, tell: Tell) -> None:
        assert config.checkpoint is not None
        self._asked = config.checkpoint
        self._config = config
        self._paths = paths
        self._tell = tell
        self._sidecar = Sidecar(
            "the process that copies checkpoints", paths.directory / "checkpoints.log"
        )
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._last_trouble = ""
        self._told_trouble = ""
        self._started = False
        self._finishing: asyncio.Task[None] | None = None
        self.volume: dict[str, Any] | None = None
        self._root, self._shared = self._find_root()
        self._others_ended = asyncio.Event()
        self._reaper: int | None = None
        self._began = 0.0
        self._cut_off = False
        self._reviving: asyncio.Task[None] | None = None
        self._revivals = 0
        self._hasten = asyncio.Event()

    # Locations

    @property
    def place(self) -> str:
        return str(self._asked["sync"])

    @property
    def copies(self) -> bool:
        """Whether this node copies. All nodes restore."""
        return self._config.is_leader or self._asked["nodes"] == "all"

    @property
    def for_all(self) -> bool:
        """Whether this node copies files that other nodes may write, too."""
        return (
            self._config.is_leader
            and self._config.num_nodes > 1
            and (self._shared or (self.volume is None and self._asked["nodes"] != "all"))
        )

    def _find_root(self) -> tuple[Path, bool]:
        """Returns the directory that holds the files, and whether it is known that all nodes share it."""
        path = str(self._asked["path"])
        for volume in self._config.volumes:
            top = str(volume["path"]).rstrip("/")
            if path == top or path.startswith(f"{top}/"):
                shared = volume.get("interface", "file") == "file" and self._config.num_nodes > 1
                return Path(f"{volume['source']}{path[len(top) :]}"), shared
        if os.path.isdir(path) and not (os.path.islink(path) or is_mount_point(path)):
            return Path(path), False
        root = self._paths.home / _PRIVATE_DIRECTORY
        self.volume = {"name": NAME, "path": path, "source": str(root), "interface": "block"}
        return root, False

    def make_room(self) -> None:
        """Creates the directory, so that workers can be shown it. Raises CheckpointError."""
        if why := ownership.taken(str(self._root)):
            raise CheckpointError(
                f"checkpoint: {why}, another user, who could put something else there; choose another path"
            )
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self._root} cannot be made: {error.strerror}") from error

    # Before GO

    async def restore(self, token: str) -> dict[str, Any]:
        """Checks that checkpoints can be copied, and restores the newest set.

        Args:
            token: The same on all nodes of this attempt.

        Raises:
            CheckpointError: It is not possible; the text says what to do.
        """
        if self._shared and not self._config.is_leader:
            return {}
        await self._start_process()
        if self.copies:
            await self._ask("checked", do="check")
        if self._config.num_nodes > 1 and token and not self._shared:
            await self._ask("proved", do="prove", token=token, write=self._config.is_leader)
        told = await self._ask("restored", do="restore", aside=self.volume is not None)
        if told["aside"]:
            names = _some(told["aside"])
            self._tell(
                "warning",
                f"checkpoint: {names} was being written when its writer ended, and is now below {told['aside_at']}",
            )
        if told["set"]:
            log.info("set %(set)s: %(files)d files, %(bytes)d bytes brought back", told)
        if not self.copies:
            await self._end_process()
        return {name: told[name] for name in ("set", "files", "bytes")}

    # While workers run

    async def start(self, reaper: int | None) -> None:
        """Begins to copy, since the workers start now."""
        if self.copies and self._sidecar.runs:
            await self._ask("started", do="start", reaper=reaper)
            self._reaper, self._began = reaper, asyncio.get_running_loop().time()
            self._started = True

    def worker_ended(self, body: Mapping[str, Any]) -> None:
        """Records that a worker ended. If it was killed or failed, the files it was writing may be incomplete."""
        by_itself = body["code"] is not None and (body["code"] == 0 or body.get("stopped"))
        if not by_itself and self._started:
            self._cut_off = True
            self._sidecar.send(do="cut")

    def others_ended(self) -> None:
        """Lets the last copy be made without waiting for workers of other nodes any longer."""
        self._others_ended.set()

    def hurry(self) -> None:
        """Copies finished files at once, while workers are still being stopped."""
        if self._started:
            self._sidecar.send(do="hurry")

    # The end

    async def finish(self) -> None:
        """Makes the final copy, after all workers have ended.

        Returns when it is done, has failed, or takes too long. Further calls wait for the same copy.
        """
        if not self._started:
            return
        if self.for_all:
            await self._others_ended.wait()
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish())
        await asyncio.shield(self._finishing)

    async def _finish(self) -> None:
        allowed = float(self._asked["final_seconds"])
        try:
            async with asyncio.timeout(allowed):
                told = await self._copy_last()
        except TimeoutError:
            why = self._last_trouble or "what it takes was not done"
            self._tell(
                "warning",
                f"checkpoint: the last copy to {self.place} failed: {why} (within {allowed:g} s, "
                "checkpoint.final_seconds)",
            )
            return
        except CheckpointError as error:
            self._tell("warning", f"checkpoint: the last copy to {self.place} failed: {error}")
            return
        finally:
            await self._end_process()
        if told["unfinished"]:
            self._tell(
                "warning",
                f"checkpoint: {_some(told['unfinished'])} was being written when its writer ended, and was not copied",
            )
        if told["skipped"]:
            self._tell(
                "warning",
                f"checkpoint: {_some(told['skipped'])} was not copied: links that lead out of the directory, pipes and "
                "sockets are left out",
            )
        if told["replaced"]:
            self._tell("warning", f"checkpoint: {self._last_trouble}")
        else:
            self._tell(
                "checkpoint",
                f"checkpoint: {_count(told['files'])}, {human_size(told['bytes'])} at {self.place}",
            )

    async def _copy_last(self) -> dict[str, Any]:
        """Has the last copy made, also if the sidecar is killed meanwhile."""
        self._hasten.set()
        while True:
            if self._reviving is not None:
                await asyncio.shield(self._reviving)
            try:
                return await self._ask("finished", do="finish")
            except CheckpointError:
                if not self._revives:
                    raise

    async def end(self) -> None:
        """Ends the sidecar, whatever it is doing."""
        if self._finishing is not None and not self._finishing.done():
            self._finishing.cancel()
        await self._end_process()

    # The sidecar

    async def _start_process(self) -> None:
        order = {
            "root": str(self._root),
            "shown_at": str(self._asked["path"]).rstrip("/"),
            "sync": self.place,
            "storage": str(self._paths.storage),
            "memory": str(self._memory()),
            "every": self._asked["every"],
            "keep": self._asked["keep"],
            "node": self._config.node_rank if self._asked["nodes"] == "all" else 0,
            "nodes": self._config.num_nodes if self._asked["nodes"] == "all" else 1,
            "source": self.copies,
            "others_write": self.for_all,
            "outage": self._config.join_timeout,
            "writer": f"{self._config.task}.{self._config.attempt}",
            "facts": {
                "task": self._config.task,
                "name": self._config.name,
                "attempt": self._config.attempt,
            },
        }
        file = self._paths.directory / "checkpoints.json"
        write_atomically(file, json.dumps(order))
        await self._sidecar.launch("checkpoints", str(file), str(os.getpid()))
        self._sidecar.follow(self._on_event, self._on_gone)

    def _memory(self) -> Path:
        # In the user's directory the file survives the loss of the node; in the node's home it would not.
        if self.volume is None and self.copies:
            return self._root / ".flowlite-checkpoint.json"
        return self._paths.home / "checkpoint.json"

    async def _ask(self, event: str, **request: Any) -> dict[str, Any]:
        waiting = self._answers[event] = asyncio.get_running_loop().create_future()
        if not self._sidecar.followed:
            raise CheckpointError(self._gone())
        self._sidecar.send(**request)
        told: dict[str, Any] = await waiting
        return told

    @property
    def _revives(self) -> bool:
        """Whether the sidecar is being started again."""
        return self._reviving is not None and not self._reviving.done()

    def _on_gone(self) -> None:
        self._fail_all(self._gone())
        if self._started and self._sidecar.runs and not self._revives:
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """Starts the sidecar again, which was killed, as by the kernel for lack of memory, or has crashed."""
        if not self._revivals:
            self._tell("warning", f"checkpoint: {self._gone()}. It is started again")
        while True:
            await self._pause_before_revival()
            try:
                await self._sidecar.end(_END_SECONDS)
                await self._start_process()
                since = asyncio.get_running_loop().time() - self._began
                again = {"since": since, "cut": self._cut_off}
                await self._ask("started", do="start", reaper=self._reaper, again=again)
                return
            except OSError as error:
                self._last_trouble = str(error)
                log.warning("%s", error)

    async def _pause_before_revival(self) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._revivals, 10))
        self._revivals += 1
        if self._hasten.is_set():
            await asyncio.sleep(min(pause, _FIRST_PAUSE))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._hasten.wait()

    def _on_event(self, told: dict[str, Any]) -> None:
        event = told["event"]
        if event == "failed":
            self._fail_all(str(told["why"]), passing=told["passing"])
        elif event == "trouble":
            self._on_trouble(str(told["error"]))
        elif event == "copied":
            self._last_trouble = self._told_trouble = ""
            log.info("set %(set)s: %(files)d files, %(bytes)d bytes copied", told)
        elif (waiting := self._answers.pop(event, None)) is not None and not waiting.done():
            waiting.set_result(told)

    def _on_trouble(self, why: str) -> None:
        log.warning("%s", why)
        self._last_trouble = why
        # A copy is retried many times, but its error is reported once. `finish` reports the final state.
        if why != self._told_trouble and self._finishing is None:
            self._told_trouble = why
            self._tell("warning", f"checkpoint: a copy failed and is tried again: {why}")

    def _fail_all(self, why: str, *, passing: bool = False) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(CheckpointError(why, passing=passing))
                # Retrieved here, since there may be no waiter left.
                waiting.exception()
        self._answers.clear()

    def _gone(self) -> str:
        return (
            "the process that copies checkpoints is gone; see "
            f"{self._paths.directory}/checkpoints.log on this node"
        )

    async def _end_process(self) -> None:
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.gather(self._reviving, return_exceptions=True)
        await self._sidecar.end(_END_SECONDS if self._finishing is None else 0.5)


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
