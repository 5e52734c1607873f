"""Mistakes of a first hour: each is answered by one line that says what to type. docs/troubleshooting.md shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Flow

PAGE = Path(__file__).parent.parent.parent / "docs" / "troubleshooting.md"

FILES = {
    "train.py": """
from flowlite import FlowApp
app = FlowApp()
@app.function
def train(lr: float = 0.1, names: list[str] = [], mode: str = "a") -> float: return lr
@app.function
def stars(*xs, **options): return xs
""",
    "noguard.py": """
from flowlite import FlowApp
app = FlowApp()
@app.function
def f(x: int) -> int: return x
print(f.remote(1))
""",
    "timeout.py": """
from flowlite import FlowApp
@FlowApp().function(timeout=3600)
def f() -> None: ...
""",
    "star.py": """
from flowlite import FlowApp
@FlowApp().function
def f(x: int) -> int: return x
f.starmap([1, 2])
""",
    "plain.py": "import sys\nprint(sys.argv)\n",
    "random.py": "from flowlite import FlowApp\n@FlowApp().function\ndef f() -> None: ...\n",
    "task.yaml": "command: 'true'\nresources: {gpu: 8}\n",
}

# What is typed, and its exit code; the line that comes is in the page.
MISTAKES: dict[str, int] = {
    "flow run --dry-run noguard.py::f 3": 2,
    "flow run plain.py --lr 3": 2,
    "flow run python plain.py": 2,
    "flow run -N 2 -- plain.py --lr 3": 2,
    "flow run -N 2 -- torchrun --nproc-per-node 2 plain.py": 2,
    "flow run --nodes 2 -- python plain.py": 2,
    "flow run --timeout 1h -- python plain.py": 2,
    "flow run --max-run-time-hours soon -- python plain.py": 2,
    "flow run --dry-run timeout.py::f": 2,
    "flow run task.yaml": 2,
    "flow run --dry-run train.py::stars 1": 2,
    "flow run --dry-run train.py::train --nproc 2": 2,
    "flow run --dry-run star.py::f 1": 2,
    "flow run --dry-run random.py::f": 2,
    "flow run --provider modal -- true": 3,
    "flow config set provider awss": 2,
}


def on_the_page() -> dict[str, str]:
    """The lines of the page, by what is typed."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize("typed", MISTAKES)
def test_one_line_says_what_to_type(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    ran = flow(*typed.split()[1:])
    assert ran.code == MISTAKES[typed]
    lines = [each for each in ran.err.splitlines() if not each.startswith("help: ")]
    assert len(lines) == 1, ran.err
    shown = re.sub(r" /\S*/random\.py", " …/random.py", lines[0].replace(f"{tmp_path}/", ""))
    assert shown == on_the_page().get(typed), f"| `{typed}` | `{shown}` |"


def test_the_page_has_at_least_ten() -> None:
    assert len(MISTAKES) >= 10
    assert set(MISTAKES) == set(on_the_page())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train.py:train", "a function is named by FILE.py::FUNCTION, as in train.py::train"),
        ("train::train", "a function is named by FILE.py::FUNCTION, as in train.py::train"),
        ("nothing.yaml", "give it a command (`command:` in a task file)"),
    ],
)
def test_what_else_is_meant(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, said: str
) -> None:
    for name, text in (*FILES.items(), ("nothing.yaml", "num_instances: 1\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for words in (("--dry-run",), ()):
        ran = flow("run", *words, typed)
        assert (ran.code, said in ran.err) == (2, True), ran.err


def test_an_option_with_several_values_takes_them_all(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(FILES["train.py"])
    monkeypatch.chdir(tmp_path)
    ran = flow("run", "--dry-run", "train.py::train", "3", "--names", "x", "y", "--mode", "b")
    assert "train(lr=3.0, names=['x', 'y'], mode='b')" in ran.out


def test_only_options_of_flow_itself_ask_for_json(flow: Flow) -> None:
    for words in (("run", "--gpu", "nope"), ("ssh", "nope")):
        ran = flow(*words, "--", "tool", "--json")
        assert (ran.out, ran.err.startswith("error: ")) == ("", True)
    assert flow("run", "--json", "--gpu", "nope", "--", "tool").json["type"] == "SpecError"
