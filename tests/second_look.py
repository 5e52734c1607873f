"""`make test-again`: runs the tests that failed in the last run once more, one after the other.

For CI, which has to tell a test that fails by chance from a change that breaks something. A test that passes only now
is a defect of its own, of the test or of the program. It is named for that, and what it said first stands above.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# More than these at a time, one test in a thousand, are no chance.
MOST = 8


class NoChance(Exception):
    """What went wrong is not for a second look."""


def failed_in(cache: Path) -> list[str]:
    """The tests that failed in the last run.

    Raises:
        NoChance: There are none, so that something else went wrong, or too many.
    """
    try:
        failed: list[str] = json.loads((cache / "v/flowlite/failed").read_bytes())
    except FileNotFoundError:
        failed = []
    if not failed:
        raise NoChance("no failed test is on record, so something else went wrong")
    if len(failed) > MOST:
        raise NoChance(
            f"{len(failed)} tests failed, which is no chance; at most {MOST} are run again"
        )
    return failed


def main() -> int:
    """Returns 0 if all of them pass now."""
    try:
        failed = failed_in(Path(".pytest_cache"))
    except NoChance as error:
        print(error)
        return 1
    print("These tests failed. Each is a defect to be understood, also if it passes now:")
    print("".join(f"  {name}\n" for name in failed), flush=True)
    # The record of what passed is that of the whole run.
    kept = ("FLOW_TEST_PASSED_TO", "FLOW_TEST_PASSED_BEFORE", "FLOW_TEST_COSTS")
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    argv = [sys.executable, "-m", "pytest", *failed]
    return subprocess.run(argv, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
