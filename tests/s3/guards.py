"""A guard of buckets as an agent starts it, for tests of what happens to it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.mount_namespace import unmount
from flowlite.node.system import processes
from tests.helpers import eventually, kill_processes_of
from tests.s3.servers import S3Server

TASK = f"t-buckets-{os.getpid()}"

SYSTEM_PYTHON = "/usr/bin/python3"
"""For other users, who may not be allowed to run this one."""

_RUN_WITHIN = """
import sys; sys.path.insert(0, sys.argv[1])
from flowlite.node.mount_namespace import namespace as mounts
mounts.enter(int(sys.argv[2]))
exec(sys.argv[3])
"""


class Guard:
    """A guard that runs, with what a test wants to know of it."""

    def __init__(
        self,
        home: Path,
        storage: Mapping[str, Mapping[str, Any]],
        *,
        tool: str = "",
        user: int | None = None,
        **environment: str,
    ) -> None:
        self.paths = AttemptPaths(home / "node" / "a1")
        self.paths.directory.mkdir(parents=True)
        given = {"FLOW_S3_TOOL": tool} if tool else {}
        config = AgentConfig(
            task=TASK,
            name="test",
            attempt=1,
            instance="i-0",
            roster=["i-0"],
            processes_per_node=1,
            call={"kind": "command", "argv": ["true"]},
            environment=given,
            mounts=[{"path": path, "url": entry["url"]} for path, entry in storage.items()],
        )
        self.paths.config.write_text(config.to_json())
        self.paths.storage.touch(mode=0o600)
        self.paths.storage.write_text(json.dumps(storage))
        if user is not None:
            for each in (home, *home.rglob("*")):
                os.chown(each, user, user)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        inherited["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:9"
        inherited["HOME"] = str(home)
        self.process = subprocess.Popen(
            processes.own_command(
                sys.executable if user is None else SYSTEM_PYTHON,
                "buckets",
                str(self.paths.directory),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, "FLOW_TASK_ID": TASK, **environment},
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )

    def hear(self, timeout: float = 90.0) -> dict[str, Any]:
        """The next thing it says."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert ready, "the guard says nothing"
        line = self.process.stdout.readline()
        assert line, f"the guard ended with {self.process.wait(90)}"
        return json.loads(line)  # type: ignore[no-any-return]

    def mounted(self) -> list[dict[str, Any]]:
        told = self.hear()
        assert told["event"] == "mounted", told
        return list(told["mounts"])

    def within(self, code: str) -> str:
        """What a program prints that sees what the workers will see."""
        root = Path(__file__).resolve().parent.parent.parent
        argv = [sys.executable, "-c", _RUN_WITHIN, str(root), str(self.process.pid), code]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def programs(self) -> list[int]:
        """The programs that mount, by pid."""
        rows = processes.table()
        return [
            each.pid for each in rows.values() if each.parent == self.process.pid and not each.dead
        ]

    def end(self) -> int:
        """Let it go, as an agent does that ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(90)

    def assert_nothing_left(self) -> None:
        """No process, no mount, no credential but the node's own file."""
        eventually(lambda: not processes.marked({"FLOW_TASK_ID": TASK}), what="no process left")
        assert unmount.mounted_below(self.paths.home) == []
        left = [path.name for path in self.paths.directory.rglob("*") if path.is_file()]
        assert not {"credentials", "rclone.conf"} & set(left), left

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        kill_processes_of(TASK)
        self.process.wait(90)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        unmount.unmount_below(self.paths.home)


def entry(server: S3Server, url: str, **changes: Any) -> dict[str, Any]:
    """An entry of `storage.json` for a bucket of a server."""
    return {
        "url": url,
        "endpoint_url": server.endpoint,
        "region": None,
        "credential": {"access_key": server.key, "secret_key": server.secret},
        "source": "the credential of the test",
        **changes,
    }
