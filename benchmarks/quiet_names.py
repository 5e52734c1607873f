"""A name server that is slow to say no stalls every connection that torch makes, for 5 seconds at random.

torch looks up the name of each peer of its store. Where no file answers that, one measures the name server. There, if
the kernel lets us, the benchmarks run under a mount namespace in which the question is refused at once; all contestants
run under it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile

MARK = "FLOWLITE_BENCH_NAMES"
SHADOW = 'mount --bind "$0" /etc/resolv.conf && rm -f "$0" && exec "$@"'


def names_are_asked_for() -> bool:
    """Whether the name of a peer here is a question for a name server, which may be slow only now and then."""
    try:
        socket.getnameinfo(("::ffff:127.0.0.1", 1, 0, 0), socket.NI_NAMEREQD)
    except OSError:
        return True
    return False


def start_again_without_name_server() -> None:
    """Replaces this process by the same one without a name server, where one would be asked; or warns."""
    if MARK in os.environ or not names_are_asked_for():
        return
    with tempfile.NamedTemporaryFile("w", prefix="resolv-", delete=False) as file:
        file.write("nameserver 127.0.0.1\n")
    own = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    shadow = [*own, "sh", "-c", SHADOW, file.name]
    if shutil.which("unshare") and subprocess.run([*shadow, "true"], check=False).returncode == 0:
        with open(file.name, "w") as again:
            again.write("nameserver 127.0.0.1\n")
        print("the name server of this machine is left out while the benchmarks run")
        sys.stdout.flush()
        os.environ[MARK] = "off"
        os.execvp(shadow[0], [*shadow, sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    print("if the name server here is slow to answer, figures with torch have up to 5 s too many")
