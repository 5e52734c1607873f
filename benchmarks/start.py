"""What every command pays: the import of the package, and `flow status` with a hundred tasks."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import PROGRAMS, command, fresh_home, interleave, python
from benchmarks.table import Row, seconds

TASKS = 100
MORE_ROUNDS = 4  # these runs are short


def measure(rounds: int) -> list[Row]:
    """Rows for the imports and for `flow status`."""
    with fresh_home():
        command(python(PROGRAMS / "make_tasks.py", str(TASKS)))
        medians = interleave(
            {
                name: partial(command, python(*arguments))
                for name, arguments in {
                    "pass": ("-c", "pass"),
                    "pydantic": ("-c", "import pydantic"),
                    "flowlite": ("-c", "import flowlite"),
                    "decorated": (
                        "-c",
                        "from flowlite import FlowApp\n@FlowApp().function\ndef f(): 1",
                    ),
                    "status": ("-m", "flowlite.cli", "status"),
                }.items()
            },
            rounds * MORE_ROUNDS,
        )
    bare, pydantic, ours, decorated, status = medians.values()
    beside = f"`import pydantic` {seconds(pydantic.seconds)}"
    return [
        Row(
            "`import flowlite`",
            seconds(ours.seconds),
            beside,
            ours.seconds / pydantic.seconds,
            "<= 1.5",
            ours.seconds <= 1.5 * pydantic.seconds,
        ),
        Row(
            "`from flowlite import FlowApp` and a decorated function",
            seconds(decorated.seconds),
            beside,
            decorated.seconds / pydantic.seconds,
        ),
        Row(
            f"`flow status` with {TASKS} tasks",
            seconds(status.seconds),
            f"`python -c pass` {seconds(bare.seconds)}",
            status.seconds / bare.seconds,
            "<= 0.3 s",
            status.seconds <= 0.3,
        ),
        Row(
            f"`flow status` with {TASKS} tasks: memory",
            f"{status.peak_mb:.0f} MB",
            to_reach="<= 60 MB",
            reached=status.peak_mb <= 60,
        ),
    ]
