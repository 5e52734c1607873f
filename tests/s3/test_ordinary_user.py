"""Runs the tests of ordinary_user.py with mounts of their own, in which everybody may open the FUSE device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.node.buckets import tools
from tests.s3.guards import SYSTEM_PYTHON

ROOT = Path(__file__).resolve().parents[2]
OPEN_TO_ALL = (
    'mount -t tmpfs none "$1" && mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse '
    '&& shift && exec "$@"'
)


def missing() -> str:
    if os.geteuid() != 0:
        return "only root can become another user"
    if not os.path.exists(tools.FUSE_DEVICE) or not shutil.which("fusermount3"):
        return "no FUSE for ordinary users on this machine"
    asked = [SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not os.path.exists(SYSTEM_PYTHON) or subprocess.run(asked, check=False).returncode:
        return "the system's Python is older than 3.11"
    return ""


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_an_ordinary_user_mounts_buckets(tmp_path: Path) -> None:
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tests += [str(ROOT / "tests/s3/ordinary_user.py")]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", OPEN_TO_ALL, "sh", str(tmp_path), *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
