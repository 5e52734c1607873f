"""A name server that is slow to say no stalls connections that torch makes, for 5 seconds at a time, at random.

torch looks up the name of each peer of its store. Where the name server does not answer, that measures the name server.
So, where the kernel lets us, the benchmarks run under a mount namespace in which the question is refused at once; all
contestants run under it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

MARK = "FLOWLITE_BENCH_NAMES"
SHADOW = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


def start_again_without_name_server() -> None:
    """Replaces this process by the same one without a name server, or says that it cannot be done."""
    if MARK in os.environ:
        return
    with tempfile.NamedTemporaryFile("w", prefix="resolv-", delete=False) as file:
        file.write("nameserver 127.0.0.1\n")
    own = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    shadow = [*own, "sh", "-c", SHADOW, file.name]
    able = shutil.which("unshare") is not None
    if not able or subprocess.run([*shadow, "true"], capture_output=True, check=False).returncode:
        os.unlink(file.name)
        print("if the name server here is slow to answer, figures with torch may be too large")
        return
    os.environ[MARK] = file.name
    os.execvp(shadow[0], [*shadow, sys.executable, "-m", "benchmarks", *sys.argv[1:]])


def tidy() -> None:
    """Removes what the namespace was made with."""
    name = os.environ.get(MARK)
    if name:
        os.unlink(name)
