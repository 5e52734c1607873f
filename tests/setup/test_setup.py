"""`setup=`: run once on every node before the workers, found in the logs, named when it fails, ended when it must."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from flowlite import FlowApp
from flowlite.errors import SpecError
from flowlite.output.reader import Logs
from flowlite.spec import TaskConfig
from flowlite.state.store import Store
from flowlite.supervise.cleanup import warm_nodes
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually, processes_of
from tests.node.agents import RealGang
from tests.wheels import make_wheel, use_no_index


def said_by_setup(gang: Gang, node: int, attempt: int = 1) -> str:
    found = list(gang.paths.logs.glob(f"a{attempt}.n{node}.r*.setup"))
    return "".join(path.read_text() for path in found)


class TestOption:
    @pytest.mark.parametrize(
        ("given", "read"),
        [("make", ("make",)), (["a", "b"], ("a", "b")), (None, ()), ("a\nb\n", ("a\nb\n",))],
    )
    def test_a_command_or_a_list_of_them(self, given: object, read: tuple[str, ...]) -> None:
        config = TaskConfig(setup=given)  # type: ignore[arg-type]
        assert config.setup == read
        assert TaskConfig.from_json(config.to_json()).setup == read

    @pytest.mark.parametrize("given", ["", "  ", 3, [3], ["a", ""], {"a": "b"}, "a\0b"])
    def test_what_is_none_is_refused(self, given: object) -> None:
        with pytest.raises(SpecError, match=r"setup: .* is not allowed; give a command for the"):
            TaskConfig(setup=given)  # type: ignore[arg-type]

    def test_its_time_is_read_as_other_times(self) -> None:
        assert TaskConfig(setup_timeout="30m").setup_timeout == 1800.0


class TestOnThisMachine:
    def test_it_runs_once_on_each_node_before_any_worker(
        self, flow_home: Path, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        gang = submit(
            flow_home,
            shell(f"echo worker >> {note}"),
            nodes=2,
            processes=2,
            setup=[
                f'echo "setup of $FLOW_NODE_RANK, $GREETING, rank ${{RANK-none}}" >> {note}',
                "echo done; echo problem >&2",
            ],
            environment={"GREETING": "hello"},
        )
        gang.end()
        lines = note.read_text().splitlines()
        assert sorted(lines[:2]) == [f"setup of {node}, hello, rank none" for node in (0, 1)]
        assert lines[2:] == ["worker"] * 4
        for node in (0, 1):
            assert said_by_setup(gang, node).splitlines()[-3:] == [
                "$ echo done; echo problem >&2",
                "done",
                "problem",
            ]
        shown = str(Logs(gang.paths.logs))
        assert "[Node 1 setup] [" in shown
        assert {line.stream for line in Logs(gang.paths.logs)} == {"setup"}

    def test_a_failure_names_node_command_status_and_last_lines_and_is_not_retried(
        self, flow_home: Path
    ) -> None:
        gang = submit(
            flow_home,
            shell("echo never"),
            nodes=2,
            setup=["true", "echo no such package >&2; exit $((41 + FLOW_NODE_RANK))"],
            retries=3,
        )
        record = gang.end("failed")
        assert record.attempt == 1
        node = 0 if "exited with 41" in record.reason else 1
        assert f"node {node} (" in record.reason
        assert "setup failed: `echo no such package >&2; exit $((41" in record.reason
        assert f"exited with {41 + node}; its last lines: no such package" in record.reason
        assert "no such package" in said_by_setup(gang, node)
        assert not list(gang.paths.logs.glob("*.out"))

    def test_a_script_ends_at_its_first_failure(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell("true"), setup=["echo one\nfalse\necho two\n"])
        reason = gang.end("failed").reason
        assert "the script that begins with `echo one` exited with 1; its last lines: one" in reason

    def test_a_cancel_ends_it_with_all_it_started(self, flow_home: Path) -> None:
        gang = submit(
            flow_home, shell("echo never"), setup=['sleep 600 & echo $! > "$FLOW_HOME/pid"; wait']
        )
        pid = int(eventually(lambda: _read(flow_home / "pid")))
        gang.store.request_cancel(gang.id)
        gang.end("cancelled")
        assert not Path(f"/proc/{pid}").exists()

    def test_it_has_a_time_limit_of_its_own(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell("true"), setup=["echo begun; sleep 600"], setup_timeout=1.0)
        reason = gang.end("failed").reason
        assert "`echo begun; sleep 600` did not end within 1 s (setup_timeout= gives it" in reason

    def test_a_further_attempt_on_the_same_node_does_not_run_it_again(
        self, flow_home: Path, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        gang = submit(
            flow_home,
            shell('test "$FLOW_ATTEMPT" = 2'),
            setup=[f"echo x >> {note}"],
            retries=1,
        )
        gang.end()
        assert gang.record.attempt == 2
        assert note.read_text() == "x\n"
        assert "setup was done for this task" in said_by_setup(gang, 0, attempt=2)

    def test_what_it_leaves_running_is_ended(self, flow_home: Path) -> None:
        gang = submit(
            flow_home, waiting(), setup=['sleep 600 & echo $! > "$FLOW_HOME/pid"; echo on']
        )
        eventually(lambda: list(gang.paths.directory.glob("nodes/*/a1/r0.out")))
        pid = int(_read(flow_home / "pid"))
        assert pid not in processes_of(gang.id)
        let_go(flow_home)
        gang.end()

    def test_a_supervisor_that_was_killed_meanwhile_takes_it_up(
        self, flow_home: Path, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        wait = 'while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done'
        gang = submit(flow_home, shell("echo ran"), setup=[f"echo x >> {note}; {wait}; echo ended"])
        eventually(note.exists)
        gang.kill_supervisor()
        let_go(flow_home)
        gang.end()
        assert note.read_text() == "x\n"
        assert said_by_setup(gang, 0).endswith("ended\n")
        assert gang.output(0) == "ran\n"


class TestInstalled:
    """What it installs is there when the workers' Python begins."""

    @pytest.fixture
    def package(self, tmp_path: Path) -> Path:
        make_wheel(tmp_path / "wheels", "probe-one", "1.0")
        return tmp_path

    @pytest.mark.slow
    def test_pip_installs_into_the_environment_of_the_task(
        self, package: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_no_index(monkeypatch, package / "uv-cache")
        wheels = package / "wheels"
        make_wheel(wheels, "probe-two", "2.5")
        monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
        monkeypatch.setenv("UV_NO_INDEX", "1")
        app = FlowApp(
            dependencies=["probe-two"],
            setup="pip install --quiet --disable-pip-version-check probe-one",
        )

        @app.function
        def use() -> tuple[str, str, str]:
            import sys

            import probe_one  # type: ignore[import-not-found]
            import probe_two  # type: ignore[import-not-found]

            return probe_one.VERSION, probe_two.VERSION, sys.prefix

        one, two, prefix = use.remote()
        assert (one, two) == ("1.0", "2.5")
        assert Path(prefix).is_relative_to(flow_home / "envs")
        # An environment for other commands knows nothing of it.
        other = use.options(setup="true").spawn()
        assert other.wait().status == "failed"
        assert "probe_one" in str(other.reason)

    def test_an_import_of_the_function_finds_what_setup_has_changed(self, tmp_path: Path) -> None:
        """The process that imports for the workers must not begin before."""
        place = tmp_path / "site"
        place.mkdir()
        (place / "probe_setup.py").write_text("VERSION = 'old'\n")
        app = FlowApp(
            environment={"PYTHONPATH": str(place)},
            setup=f"echo \"VERSION = 'new and longer'\" > {place}/probe_setup.py",
        )

        @app.function
        def version() -> str:
            import probe_setup  # type: ignore[import-not-found]

            return str(probe_setup.VERSION)

        assert version.remote() == "new and longer"


def test_a_task_that_finds_this_machine_warm_does_not_run_it_again(
    flow_home: Path, tmp_path: Path
) -> None:
    """The process that imports is kept, too, and only for the setup that it began after."""
    note = tmp_path / "note"
    app = FlowApp(keep_warm="1m", setup=f"echo x >> {note}")

    @app.function
    def template() -> int:
        import os

        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    try:
        first = template.remote()
        assert template.remote() == first
        assert note.read_text() == "x\n"
        other = template.options(setup=f"echo y >> {note}")
        assert other.remote() != first
        assert note.read_text() == "x\ny\n"
    finally:
        with closing(Store(flow_home / "state.db")) as store:
            warm_nodes.end_warm_nodes(store, flow_home)


def test_nodes_of_one_machine_run_it_one_after_another(tmp_path: Path) -> None:
    note = tmp_path / "note"
    setup = f"echo begin >> {note}; sleep 0.3; echo end >> {note}"
    call = {"kind": "command", "argv": ["true"]}
    with RealGang(tmp_path, call, nodes=3, setup=[setup]) as gang:
        ended = gang.run()
        assert ended["outcome"] == "done", gang.logs()
        assert note.read_text().splitlines() == ["begin", "end"] * 3
        gang.assert_nothing_left()


def test_the_first_rank_of_a_node_reports_what_setup_said(tmp_path: Path) -> None:
    call = {"kind": "command", "argv": ["true"]}
    with RealGang(tmp_path, call, nodes=2, setup=["echo hello"]) as gang:
        assert gang.run()["outcome"] == "done", gang.logs()
        sizes = [each["sizes"].get("setup") for each in gang.workers()]
        assert sizes == [len("$ echo hello\nhello\n"), None] * 2
        assert gang.text(2, "setup") == "$ echo hello\nhello\n"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
