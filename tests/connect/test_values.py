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


def test_a_file_for_many_nodes_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "content"
    path.write_bytes(content := os.urandom(1000))
    nodes = 8
    all_there, read = threading.Barrier(nodes), []
    digest = hashlib.file_digest

    def slow(file: Any, name: str) -> Any:
        read.append(file.name)
        # The others have asked by then, if they do not wait.
        threading.Event().wait(0.05)
        return digest(file, name)

    monkeypatch.setattr(values.hashlib, "file_digest", slow)

    def check(_: int) -> int:
        all_there.wait()
        return File("/there", path, sha256=hashlib.sha256(content).hexdigest()).check()

    with ThreadPoolExecutor(nodes) as pool:
        assert list(pool.map(check, range(nodes))) == [1000] * nodes
    assert len(read) == 1
    path.write_bytes(b"other")
    with pytest.raises(OSError, match="it was changed on this machine"):
        File("/there", path, sha256=hashlib.sha256(content).hexdigest()).check()


def test_a_child_process_can_hash_while_its_parent_does(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    for lock in values._hashing:
        lock.acquire()
    try:
        if (child := os.fork()) == 0:
            os._exit(0 if values.has_content(path, sha256) else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        for lock in values._hashing:
            lock.release()
