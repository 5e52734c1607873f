"""Runs on a host with any Python found there and prints the host's facts as one line of JSON.

It is sent as text, preceded by the modules of the node that it imports (`connect/programs.py`), so it needs nothing on
the host. It runs on Python 3.6, so that an old system can at least report what it lacks.
"""

# mypy: ignore-errors

import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

from flowlite.node.host_lease import requests
from flowlite.node.system import ownership, runtime_dir

VERSION = (
    "import sys; n = sys.implementation.name;"
    "print(('' if n == 'cpython' else n + '-') + '%d.%d.%d' % sys.version_info[:3])"
)
GPUS = ["--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
PYTHONS = ["python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"]
PLACES = [
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/usr/local/bin/python3.1[1-9]",
    "/opt/conda/bin/python3",
    "/opt/python*/bin/python3",
    "~/.pyenv/versions/*/bin/python3",
    "~/.local/share/uv/python/cpython-*/bin/python3",
    "~/miniconda3/bin/python3",
    "~/miniforge3/bin/python3",
    "~/anaconda3/bin/python3",
]
TOOLS = ["sshfs", "fusermount3", "docker", "podman", "uv", "rclone"]


def output(argv, seconds=20):
    """The output of a program; "" if it fails."""
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        text = child.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return ""
    except OSError:
        return ""
    return text.decode("utf-8", "replace") if child.returncode == 0 else ""


def pythons(first, root):
    """[path, version] of every interpreter that can be found, the preferred ones first.

    Only CPython has a bare version: neither bundles nor wheels work across implementations.
    """
    named = [shutil.which(name) for name in PYTHONS]
    globbed = [path for place in PLACES for path in sorted(glob.glob(os.path.expanduser(place)))]
    asked, seen = [], set()
    globbed += sorted(glob.glob(os.path.join(root, "envs/python/cpython-*/bin/python3")))
    for path in [os.path.expanduser(p) for p in first] + [p for p in named if p] + globbed:
        # Two names for the same program, unless one of them is in a virtual environment.
        same = (
            os.path.realpath(path),
            os.path.exists(os.path.join(path, "../../pyvenv.cfg")) and path,
        )
        if same in seen or not os.access(path, os.X_OK):
            continue
        seen.add(same)
        try:
            child = subprocess.Popen(
                [path, "-I", "-S", "-c", VERSION],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            # A directory, or a program for another processor, as in a home that different machines share.
            continue
        asked.append((path, child))
    found = []
    for path, child in asked:
        try:
            text = child.communicate(timeout=10)[0].decode("utf-8", "replace").strip()
        except subprocess.TimeoutExpired:
            child.kill()
            continue
        if re.match(r"([a-z]+-)?\d+\.\d+\.\d+$", text):
            found.append([path, text])
    return found


def gpus():
    """Index, id, name and memory (GB as vendors count) of every GPU of the driver."""
    program = shutil.which("nvidia-smi")
    found = []
    for line in output([program, *GPUS]).splitlines() if program else []:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[0].isdigit():
            memory = float(parts[3]) / 1024 if re.match(r"\d+(\.\d+)?$", parts[3]) else 0.0
            found.append(
                {"index": int(parts[0]), "uuid": parts[1], "name": parts[2], "memory_gb": memory}
            )
    return found


def towards(*addresses):
    """This host's own address on the route to the first of these that has a route; no packet is sent."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return probe.getsockname()[0]
        except OSError:
            continue
    return ""


def lease(name):
    """What the holder of this host's lease reports; None if there is none."""
    return (requests.ask({"do": "show"}, name, 5.0) or {}).get("held")


def read(path):
    """The content of a small file, or ""."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def ends_at_logout():
    """Whether all processes of a user are killed when the last session ends."""
    if not shutil.which("busctl"):
        return False
    asked = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]
    told = output(["busctl", "get-property", *asked, "KillUserProcesses"], 5)
    lingers = os.path.exists("/var/lib/systemd/linger/" + os.environ.get("USER", "root"))
    return told.strip() == "b true" and os.getuid() != 0 and not lingers


def disk(path):
    """The file system of the nearest existing directory above a path: free and total GB, and 1 for noexec."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return {
        "free_gb": round(found.f_bavail * found.f_frsize / 1e9, 2),
        "total_gb": round(found.f_blocks * found.f_frsize / 1e9, 2),
        "noexec": int(bool(found.f_flag & getattr(os, "ST_NOEXEC", 0))),
    }


def unwritable(path):
    """Why a directory, which need not exist yet, cannot be written to; "" if it can."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    probe = os.path.join(path, f".flowlite-check-{os.getpid()}")
    try:
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                # A full disk may have room for the name of a file.
                file.write(bytes(4096))
                file.flush()
            finally:
                os.unlink(probe)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def no_sockets():
    """Why there is no place for sockets and what belongs to them, with what to do; "" if there is."""
    try:
        place = runtime_dir.find()
    except OSError as error:
        return error.strerror
    why = unwritable(place)
    return why and "nothing can be written to " + why + ": make room there, or set TMPDIR"


def main():
    """Prints the facts that were asked for."""
    asked = json.loads(sys.argv[1])
    root = os.path.expanduser(asked["node_dir"])
    told = {"boot": read("/proc/sys/kernel/random/boot_id"), "held": lease(asked["lease"])}
    if not asked.get("brief"):
        ssh = os.environ.get("SSH_CONNECTION", "").split()
        told.update(
            {
                "system": sys.platform,
                "machine": os.uname().machine,
                "home": os.path.expanduser("~"),
                "root": root,
                "unsafe": ownership.problem(root, "blobs", "tasks", "envs"),
                "unwritable": unwritable(root),
                "sockets": runtime_dir.problem(),
                "no_sockets": no_sockets(),
                "pythons": pythons(asked["pythons"], root),
                "cores": len(os.sched_getaffinity(0))
                if hasattr(os, "sched_getaffinity")
                else os.cpu_count(),
                "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
                "gpus": gpus(),
                "ssh_address": ssh[2] if len(ssh) == 4 else "",
                "default_address": towards("192.0.2.1", "2001:db8::1"),
                "disk": disk(root),
                "tools": [name for name in TOOLS if shutil.which(name)],
                "ends_at_logout": ends_at_logout(),
                "now": time.time(),
            }
        )
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
