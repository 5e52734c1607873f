"""A name server that is slow to say no stalls every connection that torch makes, for 5 seconds at random.

torch looks up the name of each peer of its store. On a machine whose name server does not answer, that measures the
name server. Where it is so, and the kernel lets us, the benchmarks run under a mount namespace in which the question is
refused at once; all contestants run under it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

MARK = "FLOWLITE_BENCH_NAMES"
PATIENCE = 0.5
SHADOW = 'mount --bind "$0" /etc/resolv.conf && rm -f "$0" && exec "$@"'


def names_are_slow() -> bool:
    """Whether the lookup of a peer's name takes long enough to spoil a measurement."""
    started = time.monotonic()
    for port in range(1, 10):
        with suppress(OSError):
            socket.getnameinfo(("::ffff:127.0.0.1", port, 0, 0), socket.NI_NAMEREQD)
    return time.monotonic() - started > PATIENCE


def start_again_if_slow() -> None:
    """Replaces this process by the same one without a slow name server, or warns."""
    if MARK in os.environ or not names_are_slow():
        return
    with tempfile.NamedTemporaryFile("w", prefix="resolv-", delete=False) as file:
        file.write("nameserver 127.0.0.1\n")
    own = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    shadow = [*own, "sh", "-c", SHADOW, file.name]
    if shutil.which("unshare") and subprocess.run([*shadow, "true"], check=False).returncode == 0:
        with open(file.name, "w") as again:
            again.write("nameserver 127.0.0.1\n")
        print("the name server here is slow to answer; it is left out while the benchmarks run")
        sys.stdout.flush()
        os.environ[MARK] = "off"
        os.execvp(shadow[0], [*shadow, sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    print("the name server here is slow to answer; every figure with torch may have 5 s too many")
