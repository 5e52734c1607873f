"""Which global variables code under `if __name__ == "__main__":` may have changed, read from the source."""

from __future__ import annotations

from textwrap import dedent

import pytest

from flowlite.bundle.changed_globals import changes_of

TOP = """
import typer
cli = typer.Typer()
limit, device = 1, find()
config = {}

class Trainer:
    def prepare(self):
        global limit
        limit = 2
        config.update(lr=3)

def prepare():
    global limit
    limit = 2

def find():
    global device
    device = 5

def main():
    prepare()

@cli.command()
def train():
    prepare()

"""


@pytest.mark.parametrize(
    ("guarded", "assigned", "touched"),
    [
        ("pass", set(), set()),
        ("limit = 3", {"limit"}, set()),
        ("limit += 3", {"limit"}, set()),
        ("for limit in range(3): pass", {"limit"}, set()),
        ("with open('f') as limit: pass", {"limit"}, set()),
        ("print(limit)", set(), {"limit"}),
        ("print(config['lr'])", set(), set()),
        ("config['lr'] = 1", set(), {"config"}),
        ("config.lr.deep[0].a = 1", set(), {"config"}),
        ("config.update(lr=1)", set(), {"config"}),
        ("del config['lr']", set(), {"config"}),
        ("prepare()", {"limit"}, set()),
        ("main()", {"limit"}, set()),
        ("list(map(prepare, [1]))", {"limit"}, set()),
        ("Trainer().prepare()", {"limit"}, {"config"}),
        ("made = build(); made.prepare()", {"limit", "made"}, {"config"}),
        # A command of typer or click runs when its group is called.
        ("cli()", {"limit"}, set()),
        # What runs on nodes changes nothing here.
        ("main.remote()", set(), set()),
        ("train.options(num_instances=2).remote(config['lr'])", set(), set()),
        ("def inner():\n        limit = 3\n    inner()", {"inner"}, set()),
        (
            "def inner():\n        global limit\n        limit = 3\n    inner()",
            {"inner", "limit"},
            set(),
        ),
    ],
)
def test_what_the_guarded_code_leads_to(
    guarded: str, assigned: set[str], touched: set[str]
) -> None:
    found = changes_of(f"{TOP}if __name__ == '__main__':\n    {guarded}\n")
    assert found.assigned == assigned
    assert touched <= found.touched
    assert not found.everything
    # A function that only the top level has run is not among them.
    assert "device" not in found.assigned


@pytest.mark.parametrize(
    "guard",
    [
        "if __name__ == '__main__': prepare()",
        "if '__main__' == __name__:\n    prepare()",
        "if __name__ != '__main__':\n    pass\nelse:\n    prepare()",
        "if debug and __name__ == '__main__':\n    prepare()",
        "try:\n    if __name__ == '__main__':\n        prepare()\nexcept OSError:\n    pass",
        "__name__ == '__main__' and prepare()",
        "match __name__:\n    case '__main__':\n        prepare()",
        "limit = 5 if __name__ == '__main__' else 1",
    ],
)
def test_every_form_of_the_guard_is_seen(guard: str) -> None:
    assert changes_of(TOP + guard + "\n").assigned == {"limit"}


@pytest.mark.parametrize("code", ["globals()['limit'] = 3", "exec('limit = 3')"])
def test_globals_may_change_everything(code: str) -> None:
    assert changes_of(f"{TOP}if __name__ == '__main__':\n    {code}\n").everything
    assert not changes_of(TOP + code).everything


def test_a_module_without_a_guard_changes_nothing() -> None:
    found = changes_of(dedent("limit = 1\nprint(limit)\nlog = logger(__name__)\n"))
    assert (found.assigned, found.touched) == (set(), set())
