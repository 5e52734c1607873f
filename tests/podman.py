"""Real podman for tests: storage of its own, and an image made of this machine's own files.

Where a test machine is itself a container, podman's runtime may be refused what it sets by default (limits above our
own, a hybrid cgroup tree). Then a small program in front of `crun` leaves those settings out; all else is as it is.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.connect.uv import uv_here
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Host

IMAGE = "localhost/flowlite-test:1"
BARE = "localhost/flowlite-bare:1"
_LENIENT = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
for flag in ("--bundle", "-b"):
    if flag in words:
        path = os.path.join(words[words.index(flag) + 1], "config.json")
        with open(path) as file:
            config = json.load(file)
        config["process"].pop("rlimits", None)
        config["linux"].pop("resources", None)
        config["linux"].pop("cgroupsPath", None)
        config["mounts"] = [each for each in config["mounts"] if each["type"] != "cgroup"]
        with open(path, "w") as file:
            json.dump(config, file)
for flag in ("--process", "-p"):
    if "exec" in words and flag in words:
        path = words[words.index(flag) + 1]
        with open(path) as file:
            config = json.load(file)
        config.pop("rlimits", None)
        with open(path, "w") as file:
            json.dump(config, file)
words = [each for each in words if not each.startswith("--cgroup-manager") and each != "--systemd-cgroup"]
script = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec {crun} --cgroup-manager=disabled "$@"'
os.execvp("unshare", ["unshare", "-m", "--propagation", "slave", "sh", "-c", script, "crun", *words])
"""

_HOST = """\
set -e
mkdir -p /etc/containers
cp /mnt/shared/crun-lenient /usr/local/bin/crun-lenient
cat >/etc/containers/storage.conf <<END
[storage]
driver = "overlay"
graphroot = "/tmp/podman/root"
runroot = "/tmp/podman/run"
END
cat >/etc/containers/containers.conf <<END
[engine]
events_logger = "none"
cgroup_manager = "cgroupfs"
runtime = "crun"
[engine.runtimes]
crun = ["/usr/local/bin/crun-lenient"]
END
"""

# Whoever is not root has storage of his own; what root's overlay needs, he may not do here.
_USER = """\
mkdir -p ~/.config/containers
printf '[storage]\\ndriver = "vfs"\\n' >~/.config/containers/storage.conf
"""


class Podman:
    """podman with directories of its own. Use its `environment` for whatever is to find it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment: dict[str, str] = {}
        for name in ("root", "run", "tmp", "bin"):
            (directory / name).mkdir(parents=True)
        (directory / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{directory}/root"\nrunroot = "{directory}/run"\n'
        )
        self._configure("")

    def _configure(self, more: str) -> None:
        conf = self.directory / "containers.conf"
        conf.write_text(
            f'[engine]\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\ntmp_dir = "{self.directory}/tmp"\n{more}'
        )
        self.environment = {
            "CONTAINERS_CONF": str(conf),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
        }

    def run(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """One command."""
        return subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.environment},
            input=data,
            capture_output=True,
            timeout=100,
            check=False,
        )

    def prepare(self) -> str:
        """Makes the images and proves that a container runs; gives why none does, or ""."""
        for name, files in ((IMAGE, _with_python()), (BARE, _bare())):
            made = self.run("import", "-", name, data=files)
            if made.returncode != 0:
                return made.stderr.decode().strip()[-300:]
        said = self._try()
        crun = shutil.which("crun")
        if said and crun:
            lenient = self.directory / "bin" / "crun"
            lenient.write_text(_LENIENT.format(python=sys.executable, crun=crun))
            lenient.chmod(0o755)
            self._configure(f'runtime = "crun"\n[engine.runtimes]\ncrun = ["{lenient}"]\n')
            said = self._try()
        return said

    def _try(self) -> str:
        words = ["run", "--rm", "--network", "host", "--pid", "host", "--ipc", "host", IMAGE]
        done = self.run(*words, "/bin/sh", "-c", "exit 7")
        return "" if done.returncode == 7 else done.stderr.decode().strip()[-300:] or "?"

    def containers(self) -> list[str]:
        """Names of all containers, those that have ended included."""
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.decode().split()

    def until_empty(self) -> None:
        """Waits until there is no container; podman removes one a moment after its last process has ended."""
        eventually(lambda: not self.containers(), every=0.2, what="containers to go")

    def close(self) -> None:
        """Removes everything."""
        self.run("rm", "--all", "--force")
        shutil.rmtree(self.directory, ignore_errors=True)


def set_up(host: Host, shared: Path, user: str = "root") -> None:
    """Gives a user of a test host podman with the image, in the directories where it looks by itself."""
    archive = shared / "image.tar"
    if not archive.exists():
        archive.write_bytes(_with_python())
        lenient = shared / "crun-lenient"
        lenient.write_text(_LENIENT.format(python="/usr/bin/python3", crun=shutil.which("crun")))
        lenient.chmod(0o755)
    for words, who in (
        (["sh", "-c", _HOST], "root"),
        (["sh", "-c", _USER if user != "root" else ":"], user),
        (["podman", "import", "/mnt/shared/image.tar", IMAGE], user),
    ):
        done = host.exec(words, user=who, timeout=180)
        assert done.returncode == 0, done.stderr


# Images


def _bare() -> bytes:
    """A shell, and nothing else."""
    return _tar([Path("/bin/sh")], [])


def _with_python() -> bytes:
    """A shell and this Python with its standard library, where this machine has them."""
    base = Path(sys.base_prefix).resolve()
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib")).resolve()
    tools = [Path(shutil.which(name) or "") for name in ("cat", "ls", "id", "sleep", "readlink")]
    objects = [Path("/bin/sh"), *tools, python, *library.glob("lib-dynload/*.so")]
    objects += [each for each in base.glob("lib/libpython3*.so*") if each.is_file()]
    # uv is shown to containers, and finds its libraries in any ordinary image.
    wanted = [Path(each) for each in (uv_here(),) if each]
    return _tar(objects, [library], {"usr/bin/python3": str(python)}, wanted)


def _tar(
    objects: list[Path],
    trees: list[Path],
    links: dict[str, str] | None = None,
    wanted: list[Path] | None = None,
) -> bytes:
    """A root directory: programs with their libraries, trees, links, and the libraries that others want."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=False) as archive:
        for name in ("tmp", "proc", "sys", "dev", "etc", "root", "usr/bin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        alone = [path for path in objects if not any(tree in path.parents for tree in trees)]
        for path in dict.fromkeys([*alone, *_needed_by([*objects, *(wanted or [])])]):
            _add_file(archive, path)
        for tree in trees:
            archive.add(tree, str(tree).lstrip("/"), filter=_no_ballast)
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, path: Path) -> None:
    entry = archive.gettarinfo(str(path.resolve()), arcname=str(path).lstrip("/"))
    with open(path, "rb") as file:
        archive.addfile(entry, file)


def _no_ballast(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    ballast = r"/(test|tests|__pycache__|site-packages|dist-packages|idlelib|tkinter|ensurepip|config-[^/]*)$"
    return None if re.search(ballast, entry.name) else entry


def _needed_by(objects: list[Path]) -> list[Path]:
    """Shared libraries and the loader, by the paths at which they are looked for."""
    found: dict[Path, None] = {}
    for path in objects:
        listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
        for each in re.findall(r"(/\S+) \(0x", listed.stdout):
            found[Path(each)] = None
    return list(found)
