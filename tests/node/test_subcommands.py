"""The table of the node's subcommands: every row leads to a function, and is described."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from flowlite.node import __main__ as program


@pytest.mark.parametrize("name", program.SUBCOMMANDS)
def test_every_row_leads_to_a_function_and_is_described(name: str) -> None:
    module, function, _ = program.SUBCOMMANDS[name]
    assert callable(getattr(import_module(f"flowlite.node.{module}"), function))
    assert name in (program.__doc__ or "")


@pytest.mark.parametrize(
    "words", [[], ["nonsense"], ["agent"], ["worker", "order.json"], ["share-sftp", "/x"]], ids=str
)
def test_what_is_not_in_the_table_gets_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(words) == 2
    assert "usage: The node's program" in capsys.readouterr().err


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.node", "look", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["workers"] == []
