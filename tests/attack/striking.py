"""How each fault is brought about, and taken back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.attack.cases import NODES, SSHD_ANSWERS, Fault
from tests.attack.stage import HOSTILE, Stage
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Host

# Keeps names that flowlite's node program would take, as a user with no rights; argument: how it answers.
SQUATTER = r"""
import json, os, socket, sys, threading, time
way = sys.argv[1]
os.makedirs("/tmp/trap", mode=0o777, exist_ok=True)
if way == "directory":
    os.mkdir("/tmp/flowlite-0", 0o777)
    print("held", flush=True)
    time.sleep(1e6)
def serve(connection):
    try:
        request = json.loads(connection.makefile().readline() or "{}")
        if way == "yes":
            lease = {**request, "home": "/tmp/trap", "root": "/tmp/trap", "state": "held", "since": 0}
            connection.sendall(json.dumps({"ok": True, "lease": lease, "held": lease}).encode() + b"\n")
        elif way == "garbage":
            connection.sendall(b"\x1b]0;TITLE\x07{not json\n")
        elif way == "zeros":
            while True:
                connection.sendall(b"\0" * 65536)
        else:
            time.sleep(1e6)
    except Exception:
        pass
    connection.close()
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0flowlite-host")
listener.listen(64)
print("held", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
TRAP = "tmp/trap"
ANSWER = "tmp/attack-answer"


_CLIENT_DISK = 256 << 20


def strike(stage: Stage, fault: Fault) -> Callable[[], None]:
    """Begins a fault; what comes back ends it."""
    return _WAYS[fault.kind](stage, fault)


def _between(stage: Stage, pairs: Sequence[tuple[int, int]]) -> Callable[[], None]:
    hosts = {node: stage.host_of(node) for pair in pairs for node in pair}
    for node, host in hosts.items():
        if others := [hosts[b] for a, b in pairs if a == node]:
            host.partition(*others)

    def heal() -> None:
        for host in hosts.values():
            host.heal()

    return heal


def _cut_client_from_node(stage: Stage, fault: Fault) -> Callable[[], None]:
    host = stage.host_of(fault.nodes[0])
    host.partition(stage.cluster.laptop)
    return host.heal


def _cut_client_off(stage: Stage, fault: Fault) -> Callable[[], None]:
    stage.cluster.laptop.partition()
    return stage.cluster.laptop.heal


def _cut_node_off(stage: Stage, fault: Fault) -> Callable[[], None]:
    host = stage.host_of(fault.nodes[0])
    host.partition()
    return host.heal


def _cut_from_leader(stage: Stage, fault: Fault) -> Callable[[], None]:
    return _between(stage, [(0, fault.nodes[0])])


def _cut_pair(stage: Stage, fault: Fault) -> Callable[[], None]:
    first, second = fault.nodes
    return _between(stage, [(first, second)])


def _cut_all_pairs(stage: Stage, fault: Fault) -> Callable[[], None]:
    return _between(stage, [(a, b) for a in range(NODES) for b in range(a + 1, NODES)])


def _fill_disk(stage: Stage, fault: Fault) -> Callable[[], None]:
    host = stage.host_of(fault.nodes[0])
    host.fill_disk()
    return host.free_disk


def _fill_client_disk(stage: Stage, fault: Fault) -> Callable[[], None]:
    def fill() -> bool:
        facts = os.statvfs(stage.home)
        try:
            _resize(stage, (facts.f_blocks - facts.f_bfree) * facts.f_frsize)
        except subprocess.CalledProcessError:
            # Something was written meanwhile, so that what is there would not fit.
            return False
        return True

    eventually(fill)
    return lambda: _resize(stage, _CLIENT_DISK)


def mount_small_disk(stage: Stage) -> None:
    """Gives FLOW_HOME a disk of its own, which can be filled."""
    kept = {path.name: path for path in stage.home.iterdir()}
    aside = stage.home.with_name(f"{stage.home.name}-aside")
    shutil.copytree(stage.home, aside)
    _mount("-t", "tmpfs", "-o", f"size={_CLIENT_DISK},mode=700", "tmpfs", str(stage.home))
    for name in kept:
        shutil.move(aside / name, stage.home / name)
    aside.rmdir()


def unmount_small_disk(stage: Stage) -> None:
    """The opposite of `mount_small_disk`."""
    subprocess.run(["umount", "-l", str(stage.home)], check=True, capture_output=True)


def _resize(stage: Stage, size: int) -> None:
    _mount("-o", f"remount,size={size}", str(stage.home))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _answer_with(stage: Stage, fault: Fault) -> Callable[[], None]:
    return answer_with(stage.host_of(fault.nodes[0]), SSHD_ANSWERS[fault.way])


def answer_with(host: Host, script: str) -> Callable[[], None]:
    """Whoever is logged in is thrown out, and whoever comes gets no shell but this."""
    (host.root / ANSWER).write_text(script + "\n")
    host.restart_sshd(sessions=True, ForceCommand=f"/bin/sh /{ANSWER}")
    return lambda: host.restart_sshd(sessions=True)


def _squat(stage: Stage, fault: Fault) -> Callable[[], None]:
    host = stage.host_of(fault.nodes[0])
    squatter = host.popen(
        [sys.executable, "-S", "-c", SQUATTER, fault.way], user="flow", stdout=subprocess.PIPE
    )
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == b"held\n"

    def end() -> None:
        host.exec(["pkill", "-KILL", "-U", "flow"])
        squatter.wait(10)

    return end


def _move_clock(stage: Stage, fault: Fault) -> Callable[[], None]:
    move = stage.host_of(fault.nodes[0]).skew_clock if fault.nodes else stage.move_own_clock
    move(float(fault.way))
    return lambda: move(0)


def _turn_hostile(stage: Stage, fault: Fault) -> Callable[[], None]:
    (stage.host_of(fault.nodes[0]).root / HOSTILE).write_text(f"{fault.way} {stage.poisoned}")
    return lambda: None


_WAYS: dict[str, Callable[[Stage, Fault], Callable[[], None]]] = {
    "client-node": _cut_client_from_node,
    "client-all": _cut_client_off,
    "leader-member": _cut_from_leader,
    "member-all": _cut_node_off,
    "leader-all": _cut_node_off,
    "all-pairs": _cut_all_pairs,
    "pair": _cut_pair,
    "disk": _fill_disk,
    "client-disk": _fill_client_disk,
    "sshd": _answer_with,
    "squatter": _squat,
    "clock": _move_clock,
    "hostile": _turn_hostile,
}
