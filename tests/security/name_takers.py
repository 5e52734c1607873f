"""A process of another user that has the name of the host's lease, in the ways in which one can."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowlite.testing.hosts.root import USER

if TYPE_CHECKING:
    from flowlite.testing.hosts import Host

THEIRS = f"/home/{USER}/loot"
# What it answers is its first argument: "yes" (to everything, with a home of its own), "free" (that nobody holds the
# host), "silent" (nothing), "bound" (it does not even listen), "full" (its queue is full), "elsewhere" (that the
# host is leased by whoever asked last, to what its second argument says).
PROGRAM = f"""
import json, os, socket, sys, time
how = sys.argv[1]
taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
taken.bind("\\0flowlite-host")
if how != "bound":
    taken.listen(0 if how == "full" else 64)
waiting, client = [], ""
while how == "full" and len(waiting) < 8:
    waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    waiting[-1].setblocking(False)
    try:
        waiting[-1].connect("\\0flowlite-host")
    except BlockingIOError:
        break
print(os.getpid(), flush=True)
while how in ("bound", "full"):
    time.sleep(60)
while True:
    connection, _ = taken.accept()
    if how == "silent":
        waiting.append(connection)
        continue
    line = b""
    while not line.endswith(b"\\n"):
        block = connection.recv(65536)
        if not block:
            break
        line += block
    try:
        request = json.loads(line or b"null") or {{}}
    except ValueError:
        request = {{}}
    with open("{THEIRS}/heard", "ab") as file:
        file.write(line)
    lease = {{**request, "lease": "1", "marker": "flowlite-host/1", "home": "{THEIRS}/home", "state": "leased"}}
    answer = {{"ok": True, "gone": True, "lease": lease, "held": None}}
    if how == "elsewhere":
        client = request.get("client", client)
        answer = {{"ok": request.get("do") == "show", "held": {{**json.loads(sys.argv[2]), "client": client}}}}
    try:
        connection.sendall(json.dumps(answer).encode() + b"\\n")
    except OSError:
        pass
    connection.close()
"""


@contextmanager
def name_taken(host: Host, *how: str, user: str = USER) -> Iterator[None]:
    """The ordinary user of a host, or another one, has the name of its lease meanwhile."""
    made = host.exec(["mkdir", "-p", f"{THEIRS}/home"], user=USER)
    assert made.returncode == 0, made.stderr
    child = host.popen(["python3", "-c", PROGRAM, *how], user=user, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        number = child.stdout.readline().decode().strip()
        assert number
        yield
        host.exec(["kill", "-KILL", number])
    finally:
        child.kill()
        child.wait()
