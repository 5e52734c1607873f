"""Runs the tests of ordinary_user.py with mounts of their own, in which everybody may open the FUSE device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPEN_TO_ALL = (
    'mount -t tmpfs none "$1" && mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse '
    '&& shift && exec "$@"'
)


@pytest.mark.needs("mounts", "fuse", "system-python")
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
    assert "3 passed" in done.stdout
