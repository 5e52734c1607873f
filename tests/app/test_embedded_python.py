"""Programs that contain Python and handle Ctrl-C themselves, as R, Julia and many desktop programs do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.display.programs import ran

HANDLES = """
#include <signal.h>
static void interrupted(int number) { (void)number; }
__attribute__((constructor)) static void begin(void) { signal(SIGINT, interrupted); }
"""
PROGRAM = """
import signal
from flowlite import FlowApp
app = FlowApp()

@app.function
def double(x):
    return 2 * x

if __name__ == "__main__":
    print(signal.getsignal(signal.SIGINT), double.remote(2))
"""


@pytest.mark.needs("gcc")
def test_a_handler_from_before_python_is_left_alone(flow_home: Path, tmp_path: Path) -> None:
    """Python cannot restore such a handler, and says None for it."""
    (tmp_path / "handles.c").write_text(HANDLES)
    built = str(tmp_path / "handles.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, "handles.c"], cwd=tmp_path, check=True)
    done = ran(PROGRAM, tmp_path, LD_PRELOAD=built)
    assert done.stdout == "None 4\n", done.stderr
