"""docs/troubleshooting.md: every row of the guides is there, and each names a test that there is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| (?P<row>.+?) \| (?P<answer>.+) \| (?P<test>.+?) \|$", re.MULTILINE)

GUIDES = (
    # Troubleshooting of multi-node training with OpenCLIP, with each of the remedies it lists.
    "Nodes can't communicate: check the firewall",
    "Nodes can't communicate: is MASTER_ADDR reachable",
    "Nodes can't communicate: check the allocation",
    "`NCCL error: unhandled system error`",
    "NCCL_DEBUG",
    "check GPU visibility",
    "InfiniBand",
    "Different loss on different nodes: same code version",
    "Different loss on different nodes: is the data accessible",
    "Different loss on different nodes: `--seed`",
    "`--wait-all-nodes=1`",
    "OOM on some nodes: is GPU memory equal",
    "Network bandwidth",
    "Scaling efficiency",
    # Common errors of OpenFlamingo.
    "`Horovod is not installed`",
    "NCCL timeout / hang",
    "`CUDA out of memory`",
    "Single-GPU fallback to CPU",
    # Common errors of Axolotl on several GPUs.
    "`NCCL error: unhandled cuda error`",
    "`CheckpointError: Recomputed values",
    "`FSDP2 not compatible with adamw_8bit`",
    "`RuntimeError: Timeout in distributed init`",
    "Checkpoint consolidation fails",
    # Debugging scenarios of the guide to multi-node functions.
    "NCCL communication issues",
    "Uneven GPU utilization",
    "hanging training",
)


def rows() -> list[tuple[str, str, str]]:
    found = [(m["row"], m["answer"], m["test"]) for m in ROW.finditer(PAGE.read_text())]
    return [row for row in found if row[0] != "the guides' row" and set(row[0]) != {"-"}]


@cache
def functions_in(path: Path) -> frozenset[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in tree if isinstance(node, functions))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_row_names_a_test_that_there_is(row: tuple[str, str, str]) -> None:
    named = re.fullmatch(r"`(?P<file>[\w/]+\.py)::(?P<test>test_\w+)`", row[2])
    assert named is not None, f"the last column of {row[0]!r} is {row[2]!r}"
    path = ROOT / "tests" / named["file"]
    assert path.is_file(), f"no {path}"
    assert named["test"] in functions_in(path)


@pytest.mark.parametrize("row", GUIDES)
def test_a_row_of_the_guides_is_answered(row: str) -> None:
    assert any(row in each[0] for each in rows())


def test_all_three_tables_are_read() -> None:
    text = PAGE.read_text()
    assert text.count("| the guides' row |") == 3
    # Each of them, from its heading to the empty line after it.
    tables = re.findall(r"\n\| the guides' row \|.*?(?=\n\n)", text, flags=re.DOTALL)
    assert len(rows()) == sum(table.count("\n| ") - 1 for table in tables)
