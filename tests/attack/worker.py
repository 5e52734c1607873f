"""`python -m tests.attack.worker`: plays cases, one after the other, as they come on its standard input.

A line is {"seed", "kind"}, or a whole case; the answer is a line with what was found.
"""

from __future__ import annotations

import json
import os
import sys

from tests.attack.cases import Case, Fault, draw
from tests.attack.playing import play
from tests.attack.stage import Ground


def main() -> None:
    """Until standard input ends."""
    # What anything prints by accident is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A supervisor that gets SIGABRT writes the stacks of its threads (`playing.py`).
    os.environ["PYTHONFAULTHANDLER"] = "1"
    with Ground.lay_out() as ground:
        for line in sys.stdin:
            found = play(ground, case_of(json.loads(line)))
            answers.write(json.dumps(found.to_json()) + "\n")
            answers.flush()


def case_of(asked: dict[str, object]) -> Case:
    """The case that a line asks for."""
    if "phase" not in asked:
        return draw(int(str(asked["seed"])), str(asked["kind"]))
    faults = asked.pop("faults")
    assert isinstance(faults, list)
    made = tuple(Fault(**{**each, "nodes": tuple(each["nodes"])}) for each in faults)
    return Case(faults=made, **asked)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
