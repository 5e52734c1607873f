"""`flow rerun`: the same call with the code as it was, with options changed, and what is in its way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowlite.api.session import open_session
from flowlite.retention.pruning import remove_contents
from tests.cli.conftest import Flow

SCRIPT = """\
import os
from flowlite import FlowApp
app = FlowApp()

@app.function(processes_per_node=2, secrets=["KEY"])
def work(factor: int, words: list[str] = []) -> list:
    return [factor * 2, int(os.environ["WORLD_SIZE"]), os.environ["KEY"]]
"""


PLACE = """\
from pathlib import Path
from flowlite import FlowApp

app = FlowApp()


@app.function(sync=True)
def place() -> str:
    return Path(__file__).parent.joinpath("data.csv").read_text() + Path("data.csv").read_text()


if __name__ == "__main__":
    print(place.remote(), __file__)
"""


def test_the_project_of_a_function_is_that_of_the_first_run_also_from_elsewhere(
    flow: Flow, tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "pyproject.toml").touch()
    (project / "place.py").write_text(PLACE)
    (project / "data.csv").write_text("first ")
    (elsewhere / "data.csv").write_text("elsewhere ")
    environment = {**os.environ, "FLOW_HOME": str(flow_home)}
    argv = [sys.executable, "place.py"]
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("first first "), done.stderr
    (project / "data.csv").write_text("second ")
    monkeypatch.chdir(elsewhere)
    assert "first first" in flow("rerun", "place").out
    now = flow("rerun", "place", "--now")
    assert "second second" in now.out, now.err
    # The program's own file is its place in the copy again.
    (project / "data.csv").write_text("third ")
    again = flow("rerun", "place")
    assert "second second" in again.out, again.err
    shutil.rmtree(project)
    refused = flow("rerun", "place", "--now")
    assert (refused.code, "there is no directory" in refused.err) == (2, True), refused.err


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KEY", "the-first-value")
    path = tmp_path / "work.py"
    path.write_text(SCRIPT)
    return str(path)


def test_the_same_call_runs_again(flow: Flow, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = flow("run", "--json", f"{script}::work", "21").json
    assert first["result"] == [42, 2, "the-first-value"]
    # Neither the code as it is now nor a variable that is gone changes what runs.
    Path(script).write_text(SCRIPT.replace("* 2", "* 1000"))
    monkeypatch.delenv("KEY")
    again = flow("rerun", "--json", "--set", "processes_per_node=3", first["id"])
    assert again.code == 0, again.err
    assert again.json["result"] == [42, 3, "the-first-value"]
    assert again.json["name"] == first["name"]
    assert again.json["id"] != first["id"]
    assert "work(factor=21)" in flow("status", again.json["id"]).out
    # What the first has is not needed any more.
    assert flow("rm", "-y", first["id"]).code == 0
    monkeypatch.setenv("KEY", "the-second-value")
    third = flow("rerun", "--json")
    assert f"work ({again.json['id']}), the newest task" in third.err
    assert "no effect" not in third.err, "it speaks of options that nobody has set"
    assert third.json["result"] == [42, 3, "the-second-value"]


def test_a_cap_that_was_set_meanwhile_holds(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flow("run", "--name", "capped", "--", "true").code == 0
    monkeypatch.setenv("FLOW_MAX_RUN_TIME_HOURS", "2")
    again = flow("rerun", "--json", "capped")
    assert again.code == 0, again.err
    config = open_session().store.get_task(again.json["id"]).config
    assert config["max_run_time_hours"] == 2
    assert config["max_cost"] is None


def test_a_command_runs_again(flow: Flow) -> None:
    first = flow(
        "run", "-d", "--name", "hello", "-e", "WHO=you", "--", "sh", "-c", "echo hello $WHO"
    )
    again = flow("rerun", "hello", "--set", "environment={WHO: me}")
    assert (again.code, again.out.strip().endswith("hello me")) == (0, True), again.err
    assert first.out.strip() not in again.err


def test_the_project_is_as_the_first_run_had_it(
    flow: Flow, tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "data.csv").write_text("first")
    monkeypatch.chdir(project)
    assert flow("run", "--name", "reads", "--sync", "--", "cat", "data.csv").code == 0
    (project / "data.csv").write_text("second")
    monkeypatch.chdir(elsewhere)
    again = flow("rerun", "reads")
    assert again.out.strip().endswith("first"), again.err
    assert "--now sends them as they are now" in again.err
    # A rerun of the rerun, whose inputs are its own.
    monkeypatch.chdir(project)
    assert flow("rm", "-y", "reads").code == 0
    assert flow("rerun", "reads").out.strip().endswith("first")
    monkeypatch.chdir(elsewhere)
    now = flow("rerun", "reads", "--now")
    assert (now.out.strip().endswith("second"), "--now" in now.err) == (True, False)
    # Unused contents go only when no inputs name them.
    session = open_session()
    stored = flow_home / "files"
    for each in stored.iterdir():
        os.utime(each, (1, 1))
    remove_contents(session)
    assert {each.read_text() for each in stored.iterdir()} == {"first", "second"}
    for task in session.store.list_tasks():
        if "second" not in flow("logs", task.id).out:
            shutil.rmtree(session.paths(task.id).bundle)
    remove_contents(session)
    assert {each.read_text() for each in stored.iterdir()} == {"second"}
    for each in stored.iterdir():
        each.unlink()
    refused = flow("rerun", "reads")
    assert refused.code == 2
    assert "are not here any more (data.csv)" in " ".join(refused.err.split())
    assert "add --now" in refused.err


@pytest.fixture
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "num_instances"), "write OPTION=VALUE"),
        (("--set", "num_instance=2"), "did you mean 'num_instances'"),
        (("--set", "num_instances=many"), "num_instances"),
        (("--set", "num_instances=8:2"), "'8:2' is not allowed"),
        (("--set", "name=2024-13-77"), "cannot be read as a value of YAML"),
        (("--set", "command=date"), "it cannot be changed"),
    ],
)
def test_a_wrong_option_is_one_line(
    flow: Flow, script: str, no_supervisors: None, words: tuple[str, ...], said: str
) -> None:
    assert flow("run", "-d", f"{script}::work", "21").code == 0
    ran = flow("rerun", *words, "work")
    assert ran.code == 2
    assert said in ran.err
    assert len(open_session().store.list_tasks()) == 1


def test_without_its_inputs_it_says_so(flow: Flow, script: str, no_supervisors: None) -> None:
    task_id = flow("run", "-d", f"{script}::work", "21").out.strip()
    shutil.rmtree(open_session().paths(task_id).bundle)
    ran = flow("rerun", "work")
    assert ran.code == 2
    assert "are not here any more" in ran.err
    assert "keep_inputs_days" in ran.err
    assert len(open_session().store.list_tasks()) == 1


def test_another_python_is_refused_before_anything_is_submitted(
    flow: Flow, script: str, no_supervisors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flow("run", "-d", f"{script}::work", "21").code == 0
    other = SimpleNamespace(**{**vars(sys), "version_info": (3, 9, 0)})
    monkeypatch.setattr("flowlite.api.submission.sys", other)
    ran = flow("rerun", "work")
    assert ran.code == 2
    assert "and this is 3.9, which cannot load its call" in " ".join(ran.err.split())


def _changed(path: Path) -> None:
    """Other bytes, as long, with the times of before."""
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("name", ["call.bin", "source-*.zip"])
def test_an_input_that_was_changed_is_named_before_anything_is_submitted(
    flow: Flow, script: str, no_supervisors: None, name: str
) -> None:
    task_id = flow("run", "-d", f"{script}::work", "21").out.strip()
    (place,) = open_session().paths(task_id).bundle.glob(name)
    _changed(place)
    ran = flow("rerun", "work")
    assert ran.code == 2
    said = "".join(ran.err.split())
    assert f"{place}," in said
    assert "waschangedafterthattaskwassubmitted" in said
    assert len(open_session().store.list_tasks()) == 1
    assert not list((place.parents[2]).glob(f"*/bundle/{place.name}"))[1:], "no draft stays"


@pytest.mark.parametrize("what", ["manifest", "content"])
def test_a_file_of_the_project_that_was_changed_is_named_before_anything_is_submitted(
    flow: Flow,
    tmp_path: Path,
    flow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_supervisors: None,
    what: str,
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("data.csv").write_text("as it was")
    task_id = flow("run", "-d", "--name", "reads", "--sync", "--", "cat", "data.csv").out.strip()
    (content,) = (each for each in (flow_home / "files").iterdir() if len(each.name) == 64)
    place = open_session().paths(task_id).bundle / "project.json" if what == "manifest" else content
    _changed(place)
    ran = flow("rerun", "reads")
    assert ran.code == 2
    said = "".join(ran.err.split())
    assert f"{place}," in said
    assert ("thelistoftheproject'sfiles" if what == "manifest" else "thecontentofdata.csv") in said
    assert "--now" in said
    assert len(open_session().store.list_tasks()) == 1


def test_a_content_that_was_changed_is_named_by_the_first_run_too(
    flow: Flow, tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("data.csv").write_text("as it was")
    os.utime("data.csv", (1, 1))
    assert flow("run", "--sync", "--", "cat", "data.csv").code == 0
    (content,) = (each for each in (flow_home / "files").iterdir() if len(each.name) == 64)
    _changed(content)
    ran = flow("run", "--sync", "--", "cat", "data.csv")
    assert ran.code == 1
    said = "".join(ran.err.split())
    assert "itwaschangedonthismachineafterthetaskwassubmitted" in said
    assert str(content) in said


def test_kept_secrets_that_are_damaged_are_none(
    flow: Flow, script: str, no_supervisors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = flow("run", "-d", f"{script}::work", "21").out.strip()
    open_session().paths(task_id).secrets.write_text('["KEY"]')
    monkeypatch.delenv("KEY")
    ran = flow("rerun", "work")
    assert ran.code == 2
    assert "KEY" in ran.err
