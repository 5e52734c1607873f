"""The `flow` command. Only the module of the command that was asked for is loaded."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# Command -> module below `flowlite.cli.commands` that registers it, in the order of `flow --help`.
COMMANDS = {
    "run": "run",
    "status": "status",
    "logs": "logs",
    "result": "tasks",
    "outputs": "outputs",
    "cp": "cp",
    "cancel": "tasks",
    "resume": "tasks",
    "rerun": "rerun",
    "rm": "upkeep",
    "scale": "scale",
    "ssh": "ssh",
    "ssh-config": "ssh",
    "forward": "forward",
    "top": "top",
    "doctor": "doctor",
    "cost": "money",
    "offers": "money",
    "hosts": "hosts",
    "aws": "aws",
    "volumes": "volumes",
    "gc": "upkeep",
    "store": "store",
    "providers": "upkeep",
    "config": "settings",
    "cloud-in-a-box": "box",
}

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code.

    0 done, 1 the task failed, 2 usage, 3 not found, 4 refused by a cap, 5 provider error, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _debug(arguments)
    try:
        from flowlite.cli import interrupts

        with interrupts.remembered():
            code = _run(arguments)
            _tell_damage()
        _tidy_up()
        return code
    except KeyboardInterrupt:
        from flowlite.output.printing import write

        write(sys.stderr, "\ninterrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def program() -> int:
    """The `flow` program: as `main`, and with its exit code whenever somebody presses Ctrl-C again.

    While Python ends, nothing is left to interrupt: it would replace the code by the signal, or print a traceback.
    """
    code = INTERRUPTED
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with suppress(KeyboardInterrupt):
        code = main()
    # Python waits for threads first.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    return code


def _debug(arguments: list[str]) -> None:
    """Takes `--debug` out of the arguments: it stands before the command, whose name must come first."""
    asked = bool(arguments) and arguments[0] == "--debug"
    if asked:
        del arguments[0]
    if not asked and not os.environ.get("FLOW_DEBUG"):
        return
    from flowlite.settings import request_log

    if asked:
        request_log.turn_on()
    else:
        request_log.turn_on_if_asked()


def _tell_damage() -> None:
    """Says which rows of the store were left out because they are damaged."""
    if "flowlite.api.session" not in sys.modules:
        return
    from flowlite.api.session import take_damage
    from flowlite.cli.output import warn

    for text in take_damage():
        warn(text)


def _tidy_up() -> None:
    """Has processes of their own look for machines that crashes have left, and prune what ended long ago."""
    if "_FLOW_COMPLETE" in os.environ:
        return
    from flowlite.errors import FlowError
    from flowlite.retention.pruning import prune_in_background
    from flowlite.settings import settings
    from flowlite.supervise.cleanup.background_gc import tidy_in_background

    with suppress(FlowError, OSError):
        tidy_in_background(settings.home())
        prune_in_background(settings.home())


def _run(arguments: list[str]) -> int:
    from flowlite.cli import interrupts
    from flowlite.cli.output import Quit, Reparse, report

    while True:
        try:
            code = _invoke(arguments)
            sys.stdout.flush()
            return code
        except Reparse as again:
            arguments = again.arguments
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if interrupts.pressed() and not isinstance(error, Quit):
                raise KeyboardInterrupt from error
            return report(error, json="--json" in arguments)


def _invoke(arguments: list[str]) -> int:
    from typer.main import get_command

    name = arguments[0] if arguments else ""
    command = get_command(_application(name if name in COMMANDS else None))
    words = list(arguments)
    if name in ("run", "scale") and "--" in words:
        # The parser drops the first `--`; the second one then stands in place of a target.
        words.insert(words.index("--"), "--")
    if "_FLOW_COMPLETE" in os.environ:
        command(prog_name="flow")
    # Not through `command(...)`, which ends Python by itself when nobody reads the output any more.
    with command.make_context("flow", words, obj={"arguments": arguments}) as context:
        command.invoke(context)
    return 0


def _application(name: str | None) -> Any:
    """The application with one command, or with all for help, completion and unknown names."""
    import importlib

    import typer

    # rich draws help and tables on a terminal only; loading it takes as long as everything else.
    pretty = "rich" if sys.stdout.isatty() else None
    application = typer.Typer(
        name="flow",
        help="Run one function or command on several nodes at once: on this machine, over SSH, on Slurm or in a cloud.",
        add_completion=name is None,
        no_args_is_help=True,
        invoke_without_command=True,
        rich_markup_mode=pretty,  # type: ignore[arg-type]
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    # Without a callback, an application of one command would have no command name.
    @application.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version."),
        debug: bool = typer.Option(
            False, "--debug", help="Log every cloud API call to stderr; give it before the command."
        ),
    ) -> None:
        if version:
            from flowlite.cli.output import show_version

            show_version()

    wanted = COMMANDS if name is None else (name,)
    for command in wanted:
        module = importlib.import_module(f"flowlite.cli.commands.{COMMANDS[command]}")
        module.register(application, command)
    return application
