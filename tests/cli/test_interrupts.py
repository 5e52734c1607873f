"""Ctrl-C that comes where Python cannot raise it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from flowlite.cli import interrupts


class Thing:
    """Something that a weak reference may point to."""


class Last:
    """Ctrl-C is pressed while this goes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def in_a_callback() -> None:
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    assert reference() is None


def in_a_finaliser() -> None:
    last = Last()
    del last


def pressed_on_the_way(press: Callable[[], None]) -> None:
    press()
    time.sleep(30)


@pytest.mark.parametrize("press", [in_a_callback, in_a_finaliser])
def test_one_that_python_drops_is_raised_all_the_same(
    press: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    with interrupts.remembered(), pytest.raises(KeyboardInterrupt):
        pressed_on_the_way(press)
    assert interrupts.pressed()
    assert capfd.readouterr().err == ""


def test_an_event_loop_is_interrupted_at_an_await_and_never_in_between() -> None:
    """An exception inside the loop would lose the step of a task, which the program would wait for without end."""
    went_on = cleaned_up = False

    async def forwards() -> None:
        nonlocal went_on, cleaned_up
        signal.raise_signal(signal.SIGINT)
        went_on = True
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            cleaned_up = True

    with interrupts.remembered():
        with pytest.raises(KeyboardInterrupt):
            interrupts.run(forwards())
        assert (went_on, cleaned_up, interrupts.pressed()) == (True, True, True)
        # Elsewhere Ctrl-C is heard as before.
        assert signal.getsignal(signal.SIGINT) is interrupts._press


def test_it_is_raised_once() -> None:
    with interrupts.remembered():
        with pytest.raises(KeyboardInterrupt):
            pressed_on_the_way(in_a_callback)
        time.sleep(5 * interrupts._AGAIN_SECONDS)


def test_other_errors_there_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: told.append(said.exc_type))
    hook = sys.unraisablehook
    with interrupts.remembered():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 / 0)
        del thing
        assert reference() is None
    assert told == [ZeroDivisionError]
    assert sys.unraisablehook is hook


LATE = """
import atexit, os, signal, sys, threading, time
from flowlite import cli

def press():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

class Late:
    def __del__(self, press=os.kill, process=os.getpid(), number=signal.SIGINT):
        press(process, number)

def wait_and_press():
    threading.main_thread().join()
    # Python may be about to wait, and hears of the first one only afterwards.
    while True:
        press()
        time.sleep(0.1)

moment = sys.argv.pop(1)
if moment == "in an exit handler":
    atexit.register(press)
elif moment == "while modules go":
    sys.late = Late()
elif moment == "while threads are waited for":
    threading.Thread(target=wait_and_press).start()
sys.exit(cli.program())
"""


@pytest.mark.parametrize(
    "moment", ["in an exit handler", "while modules go", "while threads are waited for"]
)
@pytest.mark.parametrize(("words", "code"), [(["config", "path"], 0), (["no-such-command"], 2)])
def test_one_while_python_ends_changes_nothing(moment: str, words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, moment, *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
