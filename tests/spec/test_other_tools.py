"""What other tools call an option is answered with what it is called here, wherever options are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from flowlite import FlowApp
from flowlite.cli.commands.run import run
from flowlite.errors import SpecError
from flowlite.spec import TaskConfig
from flowlite.spec import other_tools as table
from flowlite.spec.options import ConfigOptions
from tests.cli.conftest import Flow, flow

__all__ = ["flow"]

WORDS = [
    ("timeout", "'max_run_time_hours'"),
    ("timeout_seconds", "'max_run_time_hours'"),
    ("timeout_min", "'max_run_time_hours'"),
    ("max_duration", "'max_run_time_hours'"),
    ("requirements", "'dependencies'"),
    ("packages", "'dependencies'"),
    ("pip", "'dependencies'"),
    ("env", "'environment'"),
    ("envs", "'environment'"),
    ("nodes", "'num_instances'"),
    ("nnodes", "'num_instances'"),
    ("num_nodes", "'num_instances'"),
    ("nproc_per_node", "'processes_per_node'"),
    ("accelerators", "'gpu'"),
    ("gpus_per_node", "'gpu'"),
    ("resources", "'gpu', 'cpu' or 'memory'"),
    ("file_mounts", "'files', 'volumes' or 'mounts'"),
    ("idle_timeout", "'keep_warm'"),
    ("use_spot", "'spot'"),
    ("max_restarts", "'retries'"),
    ("slurm_partition", "'slurm'"),
    ("cloud", "'provider'"),
    ("working_dir", "'workdir'"),
    ("docker_image", "'image'"),
]


def in_a_decorator(word: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {word: 1}
    FlowApp().function(**options)(lambda: None)


def in_a_configuration(word: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {word: 1}
    TaskConfig(**options)


def in_a_task_file(word: str, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(f"command: 'true'\n{word}: 1\n")
    TaskConfig.from_yaml(tmp_path / "task.yaml")


@pytest.mark.parametrize("place", [in_a_decorator, in_a_configuration, in_a_task_file])
@pytest.mark.parametrize(("word", "ours"), WORDS, ids=[word for word, _ in WORDS])
def test_an_option_of_another_tool(
    place: Callable[[str, Path], None], word: str, ours: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as refused:
        place(word, tmp_path)
    assert str(refused.value).endswith(f"{word}: unknown option; did you mean {ours}?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "2", "--", "true"), "no option --nodes; did you mean '-N'?"),
        (("--nnodes=2", "--", "true"), "no option --nnodes; did you mean '-N'?"),
        (("--timeout", "1h", "--", "true"), "did you mean '--max-run-time-hours'?"),
        (("--nproc-per-node", "8", "--", "true"), "did you mean '--processes-per-node'?"),
        (("--gpus", "8", "--", "true"), "did you mean '--gpu'?"),
        (("--envs", "A=1", "--", "true"), "did you mean '--env'?"),
        (("--requirements", "r", "--", "true"), "write dependencies in the decorator or in a task"),
        (("--cpu", "4", "--", "true"), "no option --cpu; write cpu in the decorator or in a task"),
        (("--internode-interconnect", "EFA", "--", "true"), "write internode_interconnect in the"),
        (("--num-instance", "2", "--", "true"), "did you mean '--num-instances'?"),
        (
            ("--lr", "1", "f.py::f"),
            "no option --lr; options of a function follow it, as in f.py::f --lr",
        ),
        (("--lr=1", "f.py"), "no option --lr; options of a function follow it, as in f.py --lr"),
        (("f.py::f", "--nodes", "2"), "f() has no option --nodes; did you mean '-N'?"),
    ],
)
def test_on_the_command_line(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "f.py").write_text(
        "from flowlite import FlowApp\n@FlowApp().function\ndef f(x: int = 0) -> int: return x\n"
    )
    monkeypatch.chdir(tmp_path)
    ran = flow("run", *words)
    assert ran.code == 2
    assert said in ran.err.splitlines()[0]


def test_where_no_function_is_named_none_is_spoken_of(flow: Flow) -> None:
    said = flow("run", "--lr", "1", "--", "python", "f.py").err.splitlines()
    assert said == ["error: no option --lr", "help: flow run --help"]


def run_command() -> Any:
    """`flow run`, with its options."""
    application = typer.Typer()
    application.command()(run)
    return get_command(application)


def test_every_suggestion_is_an_option() -> None:
    assert set(table._ELSEWHERE) <= set(ConfigOptions.__annotations__)
    assert {each for several in table._SEVERAL.values() for each in several} <= set(
        ConfigOptions.__annotations__
    )
    words = [word for words in table._ELSEWHERE.values() for word in words.split()]
    assert len(words) == len(set(words)), "a word that stands for two options"
    assert not set(ConfigOptions.__annotations__) & set(words)
    flags = {flag for option in run_command().params for flag in option.opts}
    assert {flag for flag in table._FLAGS.values() if not flag.startswith("-- ")} <= flags
