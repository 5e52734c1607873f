"""The command that starts our program on a node."""

from __future__ import annotations

import ast
import io
import threading
import tokenize
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


@pytest.mark.parametrize("module", ["system.ownership", "system.runtime_dir", "helper.mux_server"])
def test_what_is_sent_is_written_as_in_the_source(module: str) -> None:
    """What Python makes of its own tree is for that Python: 3.12 writes f-strings that 3.11 cannot read."""
    path = programs.NODE.joinpath(*module.split(".")).with_suffix(".py")
    source, text = path.read_text(), programs._text(module)
    assert len(text) < len(source)
    written = source.splitlines()
    for line in text.splitlines():
        assert any(each.startswith(line) for each in written) or line.strip() == "pass", line
    assert _without_docstrings(text) == _without_docstrings(source)
    # Nothing more can be left out.
    assert tokenize.COMMENT not in {
        each.type for each in tokenize.generate_tokens(io.StringIO(text).readline)
    }


def _without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for each in ast.walk(tree):
        if isinstance(each, ast.Module | ast.FunctionDef):
            if ast.get_docstring(each) is not None:
                each.body = each.body[1:]
            each.body = each.body or [ast.Pass()]
    return ast.dump(tree)
