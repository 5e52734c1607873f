"""`flow run`: from words to a configuration, without running anything (`--dry-run`, and what is refused before)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.cli import system_timers
from flowlite.spec import Volume
from tests.cli.conftest import Flow, Ran

TRAIN = '''
from flowlite import FlowApp

app = FlowApp()


@app.function(gpu="h100:2", num_instances=4, volumes={"/data": "shared"}, environment={"A": "1"})
def train(lr: float = 1e-4, name: str = "", resume: bool = False) -> dict[str, float]:
    """Trains a model."""
    return {"lr": lr}


def plain(x: int) -> int:
    return x
'''

TWO = TRAIN + "\n\n@app.function\ndef evaluate() -> None: ...\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "one.py").write_text(TRAIN)
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "task.yaml").write_text(
        "command: [python, eval.py]\nnum_instances: 3\nenvironment: {A: '1', B: '2'}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(flow: Flow, *words: str) -> dict[str, Any]:
    ran = flow("run", "--dry-run", "--json", *words)
    assert ran.code == 0, ran.err
    config: dict[str, Any] = ran.json["config"]
    return config


def refused(flow: Flow, *words: str) -> Ran:
    ran = flow("run", "--dry-run", *words)
    assert ran.code in (2, 3)
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    return ran


# Commands


def test_a_command_is_taken_word_by_word(flow: Flow) -> None:
    config = planned(
        flow, "-N", "2", "--processes-per-node", "4", "--", "python", "-m", "a.b", "-N", "--", "x y"
    )
    assert config["command"] == ["python", "-m", "a.b", "-N", "--", "x y"]
    assert (config["num_instances"], config["processes_per_node"]) == (2, 4)


def test_every_option_reaches_the_configuration(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "my value")
    config = planned(
        flow,
        *(
            "--gpu",
            "h100:8",
            "--manual",
            "--name",
            "n",
            "--retries",
            "2",
            "--priority",
            "high",
            "--spot",
        ),
        *("--volume", "/ckpt=ckpt", "--volume", "/other=other-volume"),
        *("--env", "K=V=W", "-e", "MINE", "--secret", "TOKEN", "--workdir", "/tmp"),
        *("--max-price-per-hour", "3.5", "--max-run-time-hours", "2", "--max-cost", "100"),
        *("--region", "here", "--image", "img"),
        *("--", "true"),
    )
    assert config["gpu"] == "h100:8"
    assert config["distributed_mode"] == "manual"
    assert config["retries"]["max_retries"] == 2
    assert config["priority"] == "high"
    assert config["spot"] is True
    assert {path: volume["name"] for path, volume in config["volumes"].items()} == {
        "/ckpt": "ckpt",
        "/other": "other-volume",
    }
    assert config["environment"] == {"K": "V=W", "MINE": "my value"}
    assert config["secrets"] == ["TOKEN"]
    assert (config["max_price_per_hour"], config["max_run_time_hours"], config["max_cost"]) == (
        3.5,
        2.0,
        100.0,
    )
    assert (config["region"], config["image"], config["workdir"]) == ("here", "img", "/tmp")


@pytest.mark.parametrize(
    ("words", "setting", "spot"),
    [((), "", None), (("--no-spot",), "", False), ((), "yes", True), (("--no-spot",), "1", False)],
)
def test_spot_is_left_open_unless_somebody_says_it(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], setting: str, spot: object
) -> None:
    monkeypatch.setenv("FLOW_SPOT", setting)
    assert planned(flow, *words, "--", "true")["spot"] is spot


def test_processes_per_node_may_be_auto(flow: Flow) -> None:
    assert (
        planned(flow, "--processes-per-node", "auto", "--", "true")["processes_per_node"] == "auto"
    )


def test_a_dry_run_writes_nothing(flow: Flow, flow_home: Path) -> None:
    ran = flow("run", "--dry-run", "-N", "2", "--", "true")
    assert "2 × this machine" in ran.out
    assert "dry run: nothing was submitted" in ran.err
    assert not (flow_home / "tasks").exists()
    assert not (flow_home / "state.db").exists()


def test_a_dry_run_checks_the_tasks_that_must_have_completed(flow: Flow, flow_home: Path) -> None:
    assert "after: no task 'prepare'" in refused(flow, "--after", "prepare", "--", "true").err
    assert not (flow_home / "state.db").exists()
    assert flow("run", "--name", "other", "--", "true").code == 0
    assert "after: no task 'prepare'" in refused(flow, "--after", "prepare", "--", "true").err
    planned(flow, "--after", "other", "--", "true")


def test_a_schedule_is_checked_before_it_is_written(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(system_timers, "add", lambda home, timer: written.append(timer.name))
    monkeypatch.setattr(system_timers, "choose", lambda: "cron")
    daily = ("--schedule", "@daily")
    ran = flow("run", *daily, "--provider", "local,awss", "--", "true")
    assert (ran.code, "no provider 'awss'" in ran.err) == (3, True)
    planned(flow, *daily, "--", "true")
    assert "never comes" in refused(flow, "--schedule", "0 3 30 2 *", "--", "true").err
    assert not written
    assert flow("run", *daily, "--", "true").code == 0
    assert written == ["true"]


def test_a_dry_run_tells_what_the_provider_notes(flow: Flow) -> None:
    ran = flow("run", "--dry-run", "--gpu", "b200:8", "-N", "2", "--", "true")
    assert "8 per node, 16 in all" in ran.out
    assert "note: rehearsal on CPU" in ran.out


def test_a_volume_is_described_as_in_the_decorator(flow: Flow) -> None:
    config = planned(
        flow,
        *("--volume", "/scratch=scratch,interface=block,size_gb=500"),
        *("--volume", "/ckpt=ckpt,size-gb=1.5", "--volume", "/data=data"),
        *("--", "true"),
    )
    block = {"name": "scratch", "interface": "block", "size_gb": 500.0}
    assert config["volumes"] == {
        "/scratch": block,
        "/ckpt": {"name": "ckpt", "interface": "file", "size_gb": 1.5},
        "/data": {"name": "data", "interface": "file", "size_gb": None},
    }
    in_python = FlowApp().function(volumes={"/scratch": block})(lambda: None).build_task_config()
    assert in_python.volumes["/scratch"] == Volume("scratch", size_gb=500, interface="block")
    assert in_python.to_dict()["volumes"]["/scratch"] == block


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to run"),
        (["--"], "followed by no command"),
        (["train"], "flow run --dry-run -- train"),
        (["nothing.py"], "no file"),
        (["nothing.yaml"], "nothing.yaml"),
        (["-N", "0", "--", "true"], "num_instances"),
        (["-N", "two", "--", "true"], "num_instances: 'two' is not allowed"),
        (["--processes-per-node", "some", "--", "true"], "processes_per_node"),
        (["--gpu", "h1000:8", "--", "true"], "h100"),
        (
            ["--volume", "/data", "--", "true"],
            "--volume: '/data' is not allowed; write PATH=NAME or, ",
        ),
        (["--volume", "/d=a,block", "--", "true"], "'/d=a,block' is not allowed; write PATH=NAME"),
        (["--volume", "/d=a,interface=", "--", "true"], "PATH=NAME,interface=block,size_gb=500"),
        (["--volume", "/d=a,interface=file,interface=block", "--", "true"], "is not allowed"),
        (["--volume", "/d=a,interface=blok", "--", "true"], "did you mean 'block'?"),
        (["--volume", "/d=a,size_gb=big", "--", "true"], "size_gb: 'big' is not allowed"),
        (["--volume", "/d=a,size_bg=5", "--", "true"], "did you mean 'size_gb'?"),
        (["--volume", "/d=,interface=block", "--", "true"], "cannot name a volume"),
        (
            ["-N", "2", "--volume", "/d=a,interface=block", "--", "true"],
            "which one node alone can use",
        ),
        (["--env", "NOT_SET_HERE", "--", "true"], "NOT_SET_HERE is not set here"),
        (["--max-cost", "-1", "--", "true"], "max_cost"),
        (["--priority", "hihg", "--", "true"], "did you mean"),
        (["--numinstances", "2", "--", "true"], "--num-instances"),
    ],
)
def test_mistakes_are_named(flow: Flow, folder: Path, words: list[str], said: str) -> None:
    assert said in refused(flow, *words).err


@pytest.mark.parametrize(
    "target", ["nothing.py", "nothing.py::train", "nothing.yaml", "some.py::no"]
)
def test_a_target_that_is_not_there_is_wrong_usage(flow: Flow, folder: Path, target: str) -> None:
    (folder / "some.py").write_text("def train(): pass\n")
    assert flow("run", "--dry-run", target).code == 2


def test_an_unknown_provider_is_not_found(flow: Flow) -> None:
    ran = refused(flow, "--provider", "locl", "--", "true")
    assert ran.code == 3
    assert "did you mean 'local'" in ran.err


def test_a_cap_ends_with_4(flow: Flow, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 5.0\n")
    ran = flow("run", "--max-price-per-hour", "4", "--", "true")
    assert ran.code == 4
    assert "$5.00" in ran.err
    assert not (flow_home / "tasks").exists()


# Functions


def test_the_only_function_of_a_file_needs_no_name(flow: Flow, folder: Path) -> None:
    config = planned(flow, "one.py", "--lr", "5e-5")
    assert (config["name"], config["num_instances"], config["gpu"]) == ("train", 4, "h100:2")
    ran = flow("run", "--dry-run", "one.py::train", "--lr", "5e-5", "--resume")
    assert "train(lr=5e-05, resume=True)" in ran.out


def test_of_several_functions_one_must_be_named(flow: Flow, folder: Path) -> None:
    assert "two.py::train, two.py::evaluate" in refused(flow, "two.py").err
    assert planned(flow, "two.py::evaluate")["name"] == "evaluate"
    wrong = refused(flow, "two.py::evalaute")
    assert wrong.code == 2
    assert "did you mean 'evaluate'" in wrong.err


def test_a_function_without_decorator_runs_if_it_is_named(flow: Flow, folder: Path) -> None:
    assert planned(flow, "one.py::plain", "--x", "3")["name"] == "plain"
    assert "plain(): missing: --x INTEGER" in refused(flow, "one.py::plain").err


def test_options_of_the_run_stand_before_or_behind_the_function(flow: Flow, folder: Path) -> None:
    for words in (
        ["-N", "2", "--env", "B=2", "one.py", "--lr", "1"],
        ["one.py", "-N", "2", "--lr", "1", "--env", "B=2"],
        ["--env", "B=2", "one.py", "--lr", "1", "-N2"],
        ["--env", "B=2", "one.py", "--no-spot", "--lr", "1", "-N2"],
    ):
        config = planned(flow, *words)
        assert config["num_instances"] == 2
        assert config["environment"] == {"A": "1", "B": "2"}
        assert list(config["volumes"]) == ["/data"]


def test_behind_the_function_its_own_parameters_come_first(flow: Flow, folder: Path) -> None:
    assert planned(flow, "one.py", "--name", "mine")["name"] == "train"
    assert planned(flow, "--name", "task-name", "one.py", "--name", "mine")["name"] == "task-name"


def test_the_help_of_a_function_shows_its_arguments(flow: Flow, folder: Path) -> None:
    ran = flow("run", "one.py", "--help")
    assert ran.code == 0
    assert "Trains a model." in ran.out
    assert "--lr NUMBER           default: 0.0001" in ran.out
    assert "--resume/--no-resume" in ran.out


def test_wrong_arguments_name_function_and_parameter(flow: Flow, folder: Path) -> None:
    assert (
        "train(): --lr: 'fast' is not allowed; give a number"
        in refused(flow, "one.py", "--lr", "fast").err
    )
    assert (
        "train() has no option --lrr; did you mean '--lr'?"
        in refused(flow, "one.py", "--lrr", "1").err
    )


def test_a_file_that_fails_shows_the_users_own_traceback(flow: Flow, folder: Path) -> None:
    (folder / "broken.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    ran = flow("run", "broken.py::f")
    assert ran.code == 2
    assert "broken.py cannot be imported: ZeroDivisionError: division by zero" in ran.err
    assert 'broken.py", line 4' in ran.err
    assert "importlib" not in ran.err
    assert "target.py" not in ran.err
    (folder / "syntax.py").write_text("def f(:\n")
    assert "syntax.py" in flow("run", "syntax.py").err
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    assert "if __name__ == '__main__':" in flow("run", "leaves.py::f").err


def test_a_package_that_only_the_active_environment_has(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `flow` was installed for itself (`uv tool install`, pipx)."""
    (folder / "needy.py").write_text("import only_in_mine\n")
    mine = folder / "env/bin/python"
    mine.parent.mkdir(parents=True)
    mine.symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert "environment" not in flow("run", "needy.py::f").err
    monkeypatch.setenv("PATH", str(mine.parent), prepend=":")
    monkeypatch.setenv("VIRTUAL_ENV", str(folder / "env"))
    told = flow("run", "needy.py::f").err
    assert "No module named 'only_in_mine'" in told
    assert f"`flow` runs in {sys.prefix}" in told
    assert f"run `{mine} -m flowlite`" in told


def test_a_file_with_the_name_of_a_module_is_refused(flow: Flow, folder: Path) -> None:
    (folder / "json.py").write_text(TRAIN)
    assert "rename the file" in refused(flow, "json.py").err


def test_a_file_without_functions_says_how_to_run_it(flow: Flow, folder: Path) -> None:
    (folder / "script.py").write_text("print('hi')\n")
    assert "flow run --dry-run -- python script.py" in refused(flow, "script.py").err


def test_a_module_of_a_package_has_its_full_name(flow: Flow, folder: Path) -> None:
    package = folder / "pack" / "inner"
    package.mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text("from . import other\n" + TRAIN)
    (package / "other.py").write_text("")
    assert planned(flow, "pack/inner/mod.py")["name"] == "train"
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    assert spec.name == "pack.inner.mod"


def test_a_module_in_a_namespace_package_has_its_full_name(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an editable install, whose `src/` is in the path; the rest of `acme/` hides no installed package."""
    acme = folder / "src" / "acme"
    (acme / "train").mkdir(parents=True)
    (acme / "train" / "__init__.py").write_text("")
    (acme / "train" / "jobs.py").write_text("from . import other\n" + TRAIN)
    (acme / "train" / "other.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder / "src")])
    assert planned(flow, "src/acme/train/jobs.py")["name"] == "train"
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    assert spec.name == "acme.train.jobs"
    assert str(acme) not in sys.path


def test_without_an_install_a_package_is_imported_from_its_directory(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folder / "examples" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text("from pack.other import X\n" + TRAIN)
    (package / "other.py").write_text("X = 1\n")
    # `python -m flowlite` puts the current directory there.
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    assert planned(flow, "examples/pack/mod.py")["name"] == "train"
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    assert spec.name == "pack.mod"


def test_a_function_and_a_command_do_not_mix(flow: Flow, folder: Path) -> None:
    assert "not both" in refused(flow, "one.py", "--", "ls").err


# Task files


def test_a_task_file_with_options_over_it(flow: Flow, folder: Path) -> None:
    config = planned(flow, "-N", "5", "--env", "B=3", "task.yaml")
    assert config["num_instances"] == 5
    assert config["environment"] == {"A": "1", "B": "3"}
    assert planned(flow, "task.yaml", "-N", "7")["num_instances"] == 7


def test_a_wrong_task_file_names_the_line(flow: Flow, folder: Path) -> None:
    (folder / "wrong.yaml").write_text("command: [x]\nnum_instnaces: 3\n")
    assert "wrong.yaml:2: num_instnaces" in refused(flow, "wrong.yaml").err


def test_a_task_file_takes_no_arguments(flow: Flow, folder: Path) -> None:
    assert "task.yaml has no option --lr" in refused(flow, "task.yaml", "--lr", "1").err
    assert "'word' is one argument too many" in refused(flow, "task.yaml", "word").err


# Files that are imported, and those that are not

STARTS = {
    "remote": "print(f.remote(1))",
    "spawn": "f.spawn(1)",
    "map": "list(f.map([1]))",
    "flow": "from flowlite import Flow, TaskConfig\nFlow().run(TaskConfig(command='true'))",
}


@pytest.mark.parametrize("how", STARTS)
@pytest.mark.parametrize(
    "words", [("--dry-run", "starts.py::f", "3"), ("starts.py::f", "--help"), ("starts.py::f", "3")]
)
def test_a_file_that_starts_a_task_when_it_is_imported_is_refused(
    flow: Flow, folder: Path, flow_home: Path, how: str, words: tuple[str, ...]
) -> None:
    (folder / "starts.py").write_text(
        "from flowlite import FlowApp\napp = FlowApp()\n@app.function(num_instances=2)\n"
        f"def f(x: int) -> int: return x\n{STARTS[how]}\n"
    )
    ran = flow("run", *words)
    line = 5 + STARTS[how].count("\n")
    assert ran.err == (
        f"error: {folder}/starts.py:{line} starts a task at the top level of the file, and so whenever the file is "
        "imported; put it under: if __name__ == '__main__':\n"
    )
    assert (ran.code, ran.out) == (2, "")
    assert not (flow_home / "tasks").exists()
    assert not (flow_home / "state.db").exists()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("Flow().volumes.create('data')", "makes a volume"),
        ("Flow().volumes.delete('data')", "deletes a volume"),
    ],
)
def test_a_file_that_changes_volumes_when_it_is_imported_is_refused(
    flow: Flow, folder: Path, flow_home: Path, statement: str, what: str
) -> None:
    (flow_home / "volumes" / "data").mkdir(parents=True)
    (folder / "volumes.py").write_text(
        f"from flowlite import Flow, FlowApp\n{statement}\n@FlowApp().function\ndef f() -> None: ...\n"
    )
    ran = flow("run", "--dry-run", "volumes.py::f")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {folder}/volumes.py:2 {what} at the top level of the file")
    assert [each.name for each in (flow_home / "volumes").iterdir()] == ["data"]


def test_after_an_import_tasks_may_be_started_again(flow: Flow, folder: Path) -> None:
    from flowlite import Flow as Client
    from flowlite import TaskConfig
    from flowlite.api import import_guard

    with pytest.raises(import_guard.StartedByImport), import_guard.users_file():
        Client().submit(TaskConfig(command="true"))
    import_guard.refuse("starts a task")


@pytest.mark.parametrize("command", ["run", "scale"])
def test_a_plain_script_is_not_imported(flow: Flow, folder: Path, command: str) -> None:
    (folder / "plain.py").write_text(
        "import argparse, pathlib\npathlib.Path('was-run').touch()\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"
    )
    ran = flow(command, "--name=n", "plain.py", "--lr", "a b")
    assert ran.code == 2
    assert ran.err == (
        "error: plain.py is a script without a decorated function; to run it as it is: "
        f"flow {command} --name=n -- python plain.py --lr 'a b'\n"
    )
    assert not (folder / "was-run").exists()


def test_an_app_of_another_module_makes_no_plain_script(flow: Flow, folder: Path) -> None:
    (folder / "common.py").write_text("from flowlite import FlowApp\napp = FlowApp()\n")
    (folder / "theirs.py").write_text(
        "from common import app\n@app.function\ndef f(x: int) -> int: return x\n"
    )
    assert "f(x=3)" in flow("run", "--dry-run", "theirs.py", "3").out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("python", "x.py", "--lr", "3"), "flow run -- python x.py --lr 3"),
        (("-N", "2", "torchrun", "x.py"), "flow run -N 2 --manual -- torchrun x.py"),
        (("nvidia-smi",), "flow run -- nvidia-smi"),
    ],
)
def test_a_command_without_its_dashes_is_suggested_whole(
    flow: Flow, words: tuple[str, ...], line: str
) -> None:
    assert flow("run", *words).err.endswith(f"to run it as a command: {line}\n")
