"""What a connection takes: files, whose content is what their hash says."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowlite.connect import values
from flowlite.connect.values import File


class _Lock:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_file_for_many_nodes_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "content"
    path.write_bytes(content := os.urandom(1000))
    file = File("/there", path, sha256=hashlib.sha256(content).hexdigest())
    nodes, lock, read = 8, _Lock(), []
    digest = hashlib.file_digest

    def late(file: Any, name: str) -> Any:
        read.append(file.name)
        # When the threads for all nodes have asked.
        assert all(lock.asked.acquire(timeout=60) for _ in range(nodes))
        return digest(file, name)

    with monkeypatch.context() as patch:
        patch.setattr(values, "_hashing", (lock,))
        patch.setattr(values.hashlib, "file_digest", late)
        with ThreadPoolExecutor(nodes) as pool:
            assert list(pool.map(lambda _: file.check(), range(nodes))) == [1000] * nodes
    assert len(read) == 1
    path.write_bytes(b"other")
    with pytest.raises(OSError, match="it was changed on this machine"):
        file.check()


def test_a_child_process_can_hash_while_its_parent_does(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    for lock in values._hashing:
        lock.acquire()
    try:
        if (child := os.fork()) == 0:
            os._exit(0 if values.hash_of(path) == sha256 else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        for lock in values._hashing:
            lock.release()
