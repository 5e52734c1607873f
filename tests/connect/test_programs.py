"""The command that starts our program on a node."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowlite.connect import programs


def test_many_threads_parse_a_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsed, threads = ast.parse, [], 16

    def count(source: str) -> Any:
        parsed.append(source)
        return parse(source)

    monkeypatch.setattr(ast, "parse", count)
    programs._start.cache_clear()
    programs._parsed.cache_clear()
    together = threading.Barrier(threads)

    def command(_: int) -> tuple[str, ...]:
        together.wait(60)
        return tuple(programs.started("python3", "/agent", "courier"))

    with ThreadPoolExecutor(threads) as pool:
        commands = set(pool.map(command, range(threads)))
    assert len(commands) == 1
    assert len(parsed) == 1
