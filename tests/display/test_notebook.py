"""Notebooks: the guide's one run as it is, what is shown in its cells, and that no text becomes markup."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite import FlowApp
from flowlite.display.notebook import NotebookOutput
from flowlite.output import html
from tests.display.programs import environment
from tests.tasks_made_by_hand import HandMade

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script><img src=x onerror='alert(2)'>&lt;\"'\x1b]0;title\x07"
ALLOWED = {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "pre"}


class Reader(HTMLParser):
    """What a browser makes of a piece of HTML: its elements, their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    """Reads HTML of ours. Fails if it has anything that we never write."""
    found = Reader(text)
    assert found.elements <= ALLOWED
    assert found.attributes <= {"style"}
    return found


# The guide


@pytest.fixture
def executed(flow_home: Path, tmp_path: Path) -> Any:
    """The guide's notebook, after its cells were run in a kernel of their own."""
    import nbformat

    out = tmp_path / "out.ipynb"
    program = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": sys.argv[3]}})
try:
    client.execute()
finally:
    nbformat.write(notebook, sys.argv[2])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, ROOT / "examples/guide/guide.ipynb", out, tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return nbformat.read(out, as_version=4)


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_guides_notebook(executed: Any) -> None:
    """Every cell runs; a task is shown in one output, as HTML and as text, and values have a form of their own."""
    cells = {cell.source: cell.outputs for cell in executed.cells if cell.cell_type == "code"}

    def live(source: str) -> str:
        """The text of the only output below a cell that tells of a task."""
        (output,) = [each for each in cells[source] if each.output_type == "display_data"]
        assert read(output.data["text/html"]).text == output.data["text/plain"]
        assert not [each for each in cells[source] if each.get("name") == "stderr"]
        return str(output.data["text/plain"])

    def value(source: str, form: str = "text/plain") -> str:
        (output,) = [each for each in cells[source] if each.output_type == "execute_result"]
        return str(output.data[form])

    first = next(source for source in cells if source.startswith("import os"))
    assert "train(lr: float, epochs: int = 3) -> float" in read(value(first, "text/html")).text

    said = live("train.remote(0.1)").splitlines()
    assert said[0].endswith(": train")
    assert any("· running" in line for line in said)
    for rank in (0, 1):
        assert [line for line in said if f"Epoch 2 on rank {rank} of 2: loss 0.729" in line]
    assert " completed in " in said[-1]
    assert value("train.remote(0.1)") == "0.729"

    awaited = "task = train.spawn(0.5, epochs=2)\nawait task"
    assert "Epoch 1 on rank 1 of 2: loss 0.250" in live(awaited)
    assert "completed" in read(value("task", "text/html")).text
    assert "Epoch 0 on rank 1 of 2" in read(value("task.logs(rank=1)", "text/html")).text

    sweep = "list(train.map([0.1, 0.2, 0.3], max_concurrent=3))"
    assert live(sweep) == "guide-train: 3 of 3 done"
    assert value(sweep) == "[0.729, 0.512, 0.343]"

    failing = next(source for source in cells if "diverge" in source)
    assert "FloatingPointError: loss is nan" in live(failing)
    listed = read(value("Flow().list_tasks()", "text/html")).text
    assert listed.count("completed") == 5
    assert "FloatingPointError: loss is nan" in listed


# Cells that a kernel runs


def said_by_a_kernel(cell: str, directory: Path) -> str:
    """What a cell prints, and the names of the errors that it ends with."""
    program = """
import sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(sys.argv[1])]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=80, allow_errors=True).execute()
print("".join(each.get("text") or each.get("ename") or "" for each in cells[0].outputs if each.get("name") != "stderr"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, cell],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=130,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


WHAT_KERNELS_HAVE = """
import os
from flowlite import FlowApp
app = FlowApp()

def shell():
    try:
        return type(get_ipython()).__name__
    except NameError:
        return "no notebook"

@app.function
def where():
    return shell(), os.environ.get("MPLBACKEND")

@app.function
def leave():
    exit(3)

@app.function
def listed():
    !ls

print(*where.remote(), "matplotlib_inline" in os.environ["MPLBACKEND"])
for function in (leave, listed):
    try:
        function.remote()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


@pytest.mark.timeout(150)
def test_workers_do_without_what_only_a_kernel_has(flow_home: Path, tmp_path: Path) -> None:
    """A worker that had a kernel's MPLBACKEND could not import matplotlib where the backend is not installed."""
    where, left, refused = said_by_a_kernel(WHAT_KERNELS_HAVE, tmp_path).splitlines()
    assert where == "no notebook None True"
    assert left.startswith("TaskFailed ")
    assert left.endswith("exited with 3")
    assert refused.startswith("BundleError listed has a `!command` or a `%magic` of the notebook")


INTERRUPTED = """
import os, signal, threading, time
from flowlite import Flow, FlowApp
app = FlowApp()

@app.function
def train():
    time.sleep(100)

def interrupt():
    while not any(task.status == "running" for task in Flow().list_tasks()):
        time.sleep(0.05)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt).start()
await train.remote.aio()
"""


@pytest.mark.timeout(150)
def test_interrupting_a_cell_that_awaits_a_call_cancels_the_task_at_once(
    flow_home: Path, tmp_path: Path
) -> None:
    """The kernel only marks the cell's task as cancelled, which wakes no loop that sleeps."""
    assert said_by_a_kernel(INTERRUPTED, tmp_path) == "CancelledError"
    from flowlite import Flow

    (task,) = Flow().list_tasks()
    task.wait()
    assert task.status == "cancelled"


# Values as HTML


@pytest.fixture
def hostile(flow_home: Path) -> HandMade:
    made = HandMade(HOSTILE)
    made.end("failed", HOSTILE)
    return made


@given(st.text())
def test_a_text_stays_a_text(text: str) -> None:
    shown = read(
        html.table([text], [[text, text]]) + html.facts(text, {text: text}) + html.lines(text)
    )
    if text.isalnum() and text.isascii():
        assert shown.text.count(text) >= 5
    quoted = Reader(f'<div title="{html.escaped(text)}"></div>')
    assert quoted.attributes == {"title"}
    assert quoted.elements == {"div"}


def test_a_hostile_name_or_reason_does_not_become_markup(hostile: HandMade) -> None:
    from flowlite import Flow

    task = Flow().list_tasks()[0]
    for shown in (task._repr_html_(), Flow().list_tasks()._repr_html_()):  # type: ignore[attr-defined]
        assert "<script" not in shown
        assert "<img" not in shown
        assert "\x1b" not in shown
        assert "alert(1)" in read(shown).text


def test_hostile_options_and_docstrings_of_a_function_do_not_become_markup() -> None:
    def work(x: str = HOSTILE) -> None: ...

    work.__doc__ = HOSTILE
    shown = FlowApp().function(environment={"A": HOSTILE})(work)._repr_html_()
    assert shown is not None
    assert "<script" not in shown
    assert read(shown).text.count("alert(1)") == 3


# The output of a cell


class Cells:
    """Remembers what was published."""

    def __init__(self) -> None:
        self.count = 1
        self.shown: dict[str, str] = {}
        self.published = 0

    def publish(self, data: dict[str, str], output: str, update: bool) -> None:
        assert update == (output in self.shown)
        assert read(data["text/html"]).text == data["text/plain"]
        self.shown[output] = data["text/plain"]
        self.published += 1


def test_hostile_output_does_not_become_markup() -> None:
    cells = Cells()
    output = NotebookOutput(cells)
    output.tell(HOSTILE)
    output.write_lines(f"{HOSTILE}\n")
    output.show_row(HOSTILE)
    output.flush()
    output.remove(output)
    (shown,) = cells.shown.values()
    assert shown.count("<script>alert(1)</script>") == 2


def test_one_output_is_updated_and_not_too_often() -> None:
    cells, now = Cells(), [100.0]
    output = NotebookOutput(cells, clock=lambda: now[0])
    output.add(output)
    for n in range(1000):
        output.write_lines(f"line {n}\n")
        output.flush()
    assert cells.published == 1
    now[0] += 1
    output.show_row("50%")
    assert cells.published == 2
    (shown,) = cells.shown.values()
    assert shown.splitlines()[0] == "… 500 lines before; flow logs shows all …"
    assert shown.splitlines()[-2:] == ["line 999", "50%"]
    output.remove(output)
    # The end is told once nobody waits any more.
    output.tell("completed")
    (shown,) = cells.shown.values()
    assert shown.splitlines()[-2:] == ["line 999", "completed"]


def test_long_output_is_updated_less_often() -> None:
    """Each update sends all of it. Ten in a second were a megabyte each second."""
    cells, now = Cells(), [100.0]
    output = NotebookOutput(cells, clock=lambda: now[0])
    output.add(output)
    output.write_lines(500 * ("x" * 100 + "\n"))
    for percent in range(100):
        now[0] += 0.1
        output.show_row(f"{percent}%")
    assert 15 <= cells.published <= 25
    (shown,) = cells.shown.values()
    output.remove(output)
    (last,) = cells.shown.values()
    assert (len(shown.splitlines()), len(last.splitlines())) == (501, 500)


def test_waiting_again_in_another_cell_goes_on_below_that_cell() -> None:
    cells = Cells()
    output = NotebookOutput(cells)
    output.add(output)
    output.write_lines("one\n")
    output.remove(output)
    cells.count = 2
    output.add(output)
    output.write_lines("two\n")
    output.remove(output)
    assert list(cells.shown.values()) == ["one", "two"]


def test_a_program_does_not_import_ipython(flow_home: Path) -> None:
    code = (
        "import sys, flowlite; from flowlite import FlowApp; import flowlite.display.waiting as w; w._surface();"
        "print([m for m in ('IPython', 'ipykernel', 'comm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
