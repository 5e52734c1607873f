"""Hosts of which only the wire exists: fake_hosts.py DIRECTORY COUNT.

One process speaks SSH for all hosts of a network namespace, each at its own address, and answers what our program on a
host would: its lease, its files, its agent. Another one serves the real rendezvous and lets all nodes join it, prepare,
start and end at once. What client and supervisor send and receive is what they would with real hosts that are warm.
DIRECTORY has the key of the hosts, and gets one line for each command that is not understood. Prints "ready".
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import resource
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import paramiko

from benchmarks.fake_pool import PORT, address_of, name_of
from flowlite.node.protocol import tls
from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous.member_client import MemberClient
from flowlite.node.rendezvous.server import RendezvousServer
from flowlite.testing.hosts import system

BOOT = "11111111-2222-3333-4444-555555555555"
NODE_HOME = "/srv/flow"
ROOT = f"{NODE_HOME}/.flowlite-node"
MARK = "flowlite-begins"
BACKLOG = 4096
_DIAL_TOGETHER = 16
_OCTAL = re.compile(rb"\\0(\d{3})")
_READ = re.compile(rb"\[ -e '([^']+)' \]\|\|exit 44")
_WRITTEN = re.compile(rb"place '[^']+' '([^']+)';;esac\ntrap - EXIT\nexit 0$")
_STARTED = re.compile(rb"setsid .*'agent' '([^']+)'")
_AGENT: dict[str, Any] = {"pid": 4242, "start": "1"}
_STAT = f"4242 (python) S {' '.join('1' for _ in range(40))}\n"


class Host:
    """One host: what was put there, and who holds it."""

    def __init__(self, address: str, unknown: Path, gang: Gang) -> None:
        self.address = address
        self.unknown = unknown
        self._gang = gang
        self._files: dict[str, bytes] = {}
        self._lease: dict[str, Any] | None = None

    def run(self, script: bytes, given: bytes) -> tuple[int, bytes]:
        """Returns exit status and output of a command."""
        if found := _READ.search(script):
            content = self._files.get(found[1].decode())
            return (44, b"") if content is None else (0, content)
        if found := _WRITTEN.search(script):
            # A courier that was busy for long is not waited for.
            self._files[found[1].decode()] = given
            return 0, b"need 0\n"
        if b"agent.pid" in script:
            return 0, f"{json.dumps(_AGENT)}\nheard\n{_STAT}".encode()
        if b'"lease"' in script and b'"node_dir"' in script:
            return 0, json.dumps(self._facts()).encode() + b"\n"
        if b"'project'" in script:
            return 0, b"{}"
        if found := _STARTED.search(script):
            self._start(found[1].decode())
            return 0, b"%d\n" % _AGENT["pid"]
        if script.startswith((b"exec 'true'", b"exec 'tail'")):
            return 0, b""
        with open(self.unknown, "ab") as file:
            file.write(f"{self.address}: ".encode() + script[-300:].replace(b"\n", b" ") + b"\n")
        return 127, b""

    def answer(self, asked: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Answers a request to the courier."""
        what = asked["do"]
        if what == "lease":
            return {"lease": self._obey(asked["what"], asked["request"])}, b""
        if what == "put":
            begin = 0
            for each in asked["files"]:
                if each["size"] is not None:
                    self._files[each["target"]] = content[begin : begin + each["size"]]
                    begin += each["size"]
            return {}, b""
        if what == "read":
            found = self._files.get(asked["path"])
            return ({}, found) if found is not None else ({"errno": 2, "text": ""}, b"")
        if what == "start":
            self._start(os.path.dirname(asked["log"]))
            return {"pid": _AGENT["pid"]}, b""
        return {}, b""

    def _obey(self, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if what == "take":
            who = {"uid": 0, "user": "root", "state": "leased", "seconds": 0.0}
            self._lease = {**request, **who, "lease": "1" * 16, "marker": "flowlite-host/1"}
            where = {"boot": BOOT, "address": self.address, "problem": ""}
            return {"ok": True, "lease": self._lease, **where}
        if what == "release":
            self._lease, self._files = None, {}
            return {"ok": True, "gone": True}
        return {"ok": True, "held": self._lease}

    def _start(self, directory: str) -> None:
        config = json.loads(self._files[f"{directory}/agent.json"])
        self._files[f"{directory}/agent.pid"] = json.dumps(_AGENT).encode()
        if config["roster"][0] == config["instance"]:
            files = {
                name: self._files.get(f"{directory}/{name}", b"")
                for name in ("secret", "rendezvous.crt", "rendezvous.key")
            }
            port = self._gang.lead(config, files)
            place = {"address": config["leader_address"], "port": port}
            self._files[f"{directory}/leader.json"] = json.dumps(place).encode()

    def _facts(self) -> dict[str, Any]:
        places = {"ssh_address": self.address, "default_address": self.address, "home": NODE_HOME}
        fine = dict.fromkeys(("unsafe", "unwritable", "sockets", "no_sockets"), "")
        return {
            "boot": BOOT,
            "held": None,
            "hostname": "fake",
            "system": "linux",
            "root": ROOT,
            "machine": os.uname().machine,
            "uid": 0,
            "now": time.time(),
            **places,
            **fine,
            "pythons": [[sys.executable, ".".join(map(str, sys.version_info[:3]))]],
            "gpus": [],
            "cores": 4,
            "memory_gb": 8.0,
            "disk": {"free_gb": 50.0, "total_gb": 100.0},
            "tools": [],
            "ends_at_logout": False,
        }


# SSH


class Command:
    """One command of a client, on its channel."""

    def __init__(self, host: Host, channel: Any, line: bytes) -> None:
        self._host = host
        self._channel = channel
        self._came = b""
        _, _, rest = line.partition(b"' sh '")
        self._script = _decoded(rest[:-1]) if rest else b""
        self._is_courier = b" 'courier' " in self._script
        channel.sendall(f"{MARK} 4243\n".encode())
        channel.sendall_stderr(f"{MARK}\n".encode())

    def take(self, data: bytes) -> None:
        """Takes a part of standard input."""
        self._came += data
        if not self._script and b"\n" in self._came:
            first, _, self._came = self._came.partition(b"\n")
            self._script = _decoded(first)
        while self._is_courier and b"\n" in self._came:
            line, _, rest = self._came.partition(b"\n")
            asked = json.loads(line)
            size = int(asked.get("size", 0))
            if len(rest) < size:
                return
            content, self._came = rest[:size], rest[size:]
            if asked["do"] != "beat":
                answer, back = self._host.answer(asked, content)
                head = json.dumps({**answer, "size": len(back)}).encode()
                self._channel.sendall(head + b"\n" + back)

    def end(self) -> None:
        """Standard input has ended."""
        code, output = (0, b"") if self._is_courier else self._host.run(self._script, self._came)
        if output:
            self._channel.sendall(output)
        self._channel.send_exit_status(code)
        self._channel.close()


def _decoded(text: bytes) -> bytes:
    """Reverses `flowlite.connect.ssh.quoting.encode`."""
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text)


class _Transport(paramiko.Transport):
    # A thousand threads that look ten times a second whether they are closed would take a processor.
    _active_check_timeout = 60.0


class Sshd(paramiko.ServerInterface):
    """The server's side of one connection. Everything is answered in the connection's own thread."""

    def __init__(self, host: Host, sock: socket.socket, key: paramiko.PKey) -> None:
        self._host = host
        self._commands: dict[int, Command] = {}
        transport = _Transport(sock)
        self._transport = cast(Any, transport)
        self._transport._channel_handler_table = {
            **self._transport._channel_handler_table,
            paramiko.common.MSG_CHANNEL_DATA: self._take,
            paramiko.common.MSG_CHANNEL_EOF: self._end,
        }
        transport.add_server_key(key)
        transport.start_server(threading.Event(), self)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._commands[channel.get_id()] = Command(self._host, channel, command)
        return True

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        threading.Thread(target=self._lead_on, args=(chanid, destination), daemon=True).start()
        return paramiko.common.OPEN_SUCCEEDED

    def _take(self, channel: Any, message: paramiko.Message) -> None:
        channel._feed(message)
        command = self._commands.get(channel.get_id())
        while command is not None and channel.recv_ready():
            command.take(channel.recv(1 << 20))

    def _end(self, channel: Any, message: paramiko.Message) -> None:
        channel._handle_eof(message)
        command = self._commands.pop(channel.get_id(), None)
        if command is not None:
            command.end()

    def _lead_on(self, number: int, destination: tuple[str, int]) -> None:
        """Carries a connection through the host, as its sshd would."""
        while (channel := self._transport._channels.get(number)) is None:
            time.sleep(0.001)
        far = socket.create_connection(destination)

        def up() -> None:
            with suppress(OSError, EOFError):
                while block := channel.recv(65536):
                    far.sendall(block)
                far.shutdown(socket.SHUT_WR)

        threading.Thread(target=up, daemon=True).start()
        with suppress(OSError, EOFError):
            while block := far.recv(65536):
                channel.sendall(block)
        channel.close()


# The gang


class Gang:
    """A process that leads each gang, and in which all of its nodes take part."""

    def __init__(self, count: int) -> None:
        self._here, there = multiprocessing.Pipe()
        self._one = threading.Lock()
        multiprocessing.Process(target=_play_gangs, args=(there, count)).start()

    def lead(self, config: dict[str, Any], files: dict[str, bytes]) -> int:
        """Begins a gang. Returns the port of its rendezvous."""
        with self._one:
            self._here.send((config, files))
            return int(self._here.recv())


def _play_gangs(orders: Connection, count: int) -> None:
    system.die_with_parent()
    addresses = {name_of(number): address_of(number) for number in range(count)}
    with suppress(EOFError):
        while True:
            config, files = orders.recv()
            # Each in a process of its own: what is left of one cannot slow down the next.
            if os.fork() == 0:
                system.die_with_parent()
                try:
                    asyncio.run(_play(config, files, orders, addresses))
                except BaseException:
                    # A client waits for this gang: it must not be lost why it does in vain.
                    traceback.print_exc()
                os._exit(0)


async def _play(
    config: dict[str, Any],
    files: dict[str, bytes],
    orders: Connection,
    addresses: dict[str, str],
) -> None:
    settings = GangSettings(
        config["task"],
        config["attempt"],
        tuple(config["roster"]),
        processes_per_node=config["processes_per_node"],
        leader_address=config["leader_address"],
    )
    for_server: Callable[[], tls.TlsSession] | None = None
    for_client: Callable[[], tls.TlsSession] | None = None
    with tempfile.TemporaryDirectory() as directory:
        certificate, key = Path(directory, "crt"), Path(directory, "key")
        certificate.write_bytes(files["rendezvous.crt"])
        key.write_bytes(files["rendezvous.key"])
        if config["tls"]:
            for_server, for_client = tls.server(certificate, key), tls.client(certificate)
    secret = files["secret"]
    server = RendezvousServer(
        settings, secret, bind=config["bind"], master=NoMaster(), new_tls=for_server
    )
    port = await server.start()
    orders.send(port)
    taking_part: list[asyncio.Task[Any]] = [asyncio.create_task(server.run())]
    for rank, instance in enumerate(settings.roster):
        # TASK-NUMBER-NAME-TOKEN
        node = FakeNode(rank, settings, addresses[instance.split("-")[-2]])
        place = (config["leader_address"], port)
        node.link = MemberClient(settings, secret, instance, "1", place, node, for_client)
        taking_part.append(asyncio.create_task(node.link.run()))
        if rank % _DIAL_TOGETHER == 0:
            # All of them are in this one process, which would be too slow for as many handshakes at a time.
            await node.connected.wait()
    await asyncio.gather(*taking_part, return_exceptions=True)


class NoMaster:
    """A master port that nobody will use."""

    def prove(self) -> int:
        """A port."""
        return 29500

    def close(self) -> None:
        """Nothing to close."""


class FakeNode:
    """A node whose workers end as soon as they start."""

    link: MemberClient

    def __init__(self, rank: int, settings: GangSettings, address: str) -> None:
        self._ranks = range(
            rank * settings.processes_per_node, (rank + 1) * settings.processes_per_node
        )
        self._rank = rank
        self._address = address
        self.connected = asyncio.Event()

    def facts(self) -> dict[str, Any]:
        """What all nodes have in common, but the address. Asked for when the node is connected."""
        self.connected.set()
        same = {"hostname": "fake", "python": "3.11.7", "python_minor": "3.11", "code": "c" * 64}
        disk = {"disk_free_bytes": 1 << 40, "disk_total_bytes": 1 << 41}
        more = {"agent": "a" * 64, "clock": time.time(), "gpus": None, **disk}
        return {"address": self._address, **same, **more}

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to prepare."""
        return {}

    async def start(self, go: Mapping[str, Any]) -> None:
        """Reports that all workers have ended, a moment later."""
        asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        now = time.time()
        for local_rank, rank in enumerate(self._ranks):
            self.link.report_worker(
                {
                    "rank": rank,
                    "local_rank": local_rank,
                    "node": self._rank,
                    "code": 0,
                    "signal": None,
                    "failure": None,
                    "tail": [],
                    "started": now,
                    "ended": now,
                    "sizes": {"out": 0, "err": 0, "result": 0},
                }
            )

    async def stop(self, reason: str, grace: float) -> None:
        """Nothing runs."""

    def streams(self) -> dict[str, Path]:
        """There is no output."""
        return {}


def main() -> None:
    """Serves until it is killed."""
    directory, count = Path(sys.argv[1]), int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gang = Gang(count)
    key = paramiko.Ed25519Key.from_private_key_file(str(directory / "host_key"))
    unknown = directory / "unknown"
    hosts = {address: Host(address, unknown, gang) for address in map(address_of, range(count))}
    listener = socket.create_server(("0.0.0.0", PORT), backlog=BACKLOG)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Sshd(hosts[sock.getsockname()[0]], sock, key)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
