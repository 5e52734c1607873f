"""The `flow` command. Only the module of the given command is imported.

`COMMANDS` below maps commands to modules of `commands/`, in the order of `flow --help`. The modules beside this file
are what several commands share:

    task_options.py, arguments.py, target.py, batch_scripts.py  what is to run, and with which options
    submit_and_follow.py, interrupts.py                         running it; a Ctrl-C is never lost
    common_options.py                                           what several commands have
    task_argument.py, completion.py, confirmation.py            which task is meant; asking first
    output.py, columns.py, candidate_table.py, result_text.py, transfer_progress.py    everything that is printed
    node_queries.py                                             questions to the nodes of a task
    system_timers.py                                            `flow run --schedule`: systemd or cron

Nothing is decided here that a program could not do with the API: a command reads its arguments, calls `api` or the
room it is about, and prints with `output.py`. Imports every other room but
`testing`. Start with `commands/run.py`; `CONTRIBUTING.md` tells how a command is added.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# Command -> module below `flowlite.cli.commands` that has the function, or the group, of that name, in the order of
# `flow --help`.
COMMANDS = {
    "run": "run",
    "status": "status",
    "queue": "queue.show",
    "schedule": "queue.schedule",
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
    "dev": "dev.command",
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

# Commands whose target is followed by options that are not theirs.
_WITH_OTHER_WORDS = ("run", "scale")
INTERRUPTED = 130
# New objects after which the garbage collector looks for some to free. Python's own 700 would have it look through the
# imported modules again and again, which takes a fifth of their import and finds nothing.
_NEW_OBJECTS = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0 success, 1 the task failed, 2 usage error, 3 not found, 4 refused by a cap, 5 provider error, 130 interrupted.
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
        # The reader of the output (`| head`) has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def program() -> int:
    """The entry point of the `flow` program: as `main`, and keeps the exit code if Ctrl-C is pressed again.

    Another Ctrl-C while Python shuts down would otherwise replace the exit code by the signal, or print a traceback.
    """
    code = INTERRUPTED
    _open_standard_streams()
    _replace_what_cannot_be_encoded()
    gc.set_threshold(_NEW_OBJECTS)
    # A daemon may ignore the ends of its children, which is inherited. Python then takes every program that fails for
    # one that succeeded.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with suppress(KeyboardInterrupt):
        code = main()
    # Python would look through all objects twice more while it shuts down.
    gc.freeze()
    # Python joins threads before it runs the atexit handlers.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    return code


def _open_standard_streams() -> None:
    """Connects standard streams that the shell has closed (`>&-`) to nothing, so that no file gets their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _replace_what_cannot_be_encoded() -> None:
    """Lets standard streams replace characters that a terminal's encoding lacks (`LANG=de_DE.ISO-8859-1`).

    Tables have such characters even if no text has: the mark of one that was cut.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _debug(arguments: list[str]) -> None:
    """Removes a leading `--debug` from the arguments, so that the command's name comes first."""
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
    """Warns about damaged rows of the store that were skipped."""
    if "flowlite.api.session" not in sys.modules:
        return
    from flowlite.api.session import take_damage
    from flowlite.cli.output import warn

    for text in take_damage():
        warn(text)


def _tidy_up() -> None:
    """Starts background processes that end machines left by crashes, and that prune tasks which ended long ago."""
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
    from flowlite.cli.output import Quit, Reparse, drop_unusable_streams, is_of_worker, report

    while True:
        try:
            code = _invoke(arguments)
            sys.stdout.flush()
            return code
        except Reparse as again:
            arguments = again.arguments
        except Exception as error:
            # An error that a worker has raised is about no stream of this process.
            of_stream = error if isinstance(error, OSError) and not is_of_worker(error) else None
            if isinstance(of_stream, BrokenPipeError):
                raise
            if interrupts.pressed() and not isinstance(error, Quit):
                raise KeyboardInterrupt from error
            # What follows `--` is a program with options of its own.
            own = arguments[: arguments.index("--")] if "--" in arguments else arguments
            if of_stream is not None:
                drop_unusable_streams(of_stream)
            return report(error, json="--json" in own)


def _invoke(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    command = _root(name if name in COMMANDS else None)
    words = list(arguments)
    if name in _WITH_OTHER_WORDS and "--" in words:
        # The parser drops the first `--`; a second one is read in place of a target.
        words.insert(words.index("--"), "--")
    if name == "ssh" and "--" in words and not _names_a_task(words[1 : words.index("--")]):
        # What follows is a program for the newest task.
        words.insert(words.index("--") + 1, "")
    if "_FLOW_COMPLETE" in os.environ:
        command(prog_name="flow")
    # `command(...)` would exit the process itself on a broken pipe.
    with command.make_context("flow", words, obj={"arguments": arguments}) as context:
        command.invoke(context)
    return 0


def _root(name: str | None) -> Any:
    """The group `flow`, with one command or with all."""
    from typer.main import get_command

    root: Any = get_command(_application(name))
    # typer has all plain commands before all groups.
    root.commands = {each: root.commands[each] for each in COMMANDS if each in root.commands}
    if sys.stdout.isatty():
        _join_lines(root)
    return root


def _join_lines(command: Any) -> None:
    """Makes each paragraph of the help of a command, and of those below it, one line, which rich wraps to the terminal.

    Click itself joins them; typer with rich keeps the line breaks of the source after the first paragraph. Those after
    a backspace are meant, as in Click.
    """
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(
        each.removeprefix("\b\n") if each.startswith("\b") else " ".join(each.split())
        for each in paragraphs
    )
    for each in getattr(command, "commands", {}).values():
        _join_lines(each)


def _names_a_task(words: Sequence[str]) -> bool:
    """Whether a word of `flow ssh` is neither an option nor the value of one."""
    values = ("--node", "--command", "-c")
    return any(
        not word.startswith("-") and before not in values
        for before, word in zip(("", *words), words, strict=False)
    )


def _application(name: str | None) -> Any:
    """The typer application with one command, or with all commands for help, completion and unknown names."""
    import importlib

    import typer

    # rich is used on a terminal only, since importing it takes as long as everything else.
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

    # Without a callback, typer drops the command name of an application with one command.
    @application.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version."),
        debug: bool = typer.Option(
            False, "--debug", help="Log every cloud API call to stderr; give it before the command."
        ),
    ) -> None:
        if version:
            from flowlite import __version__
            from flowlite.cli.output import Quit, say

            say(f"flowlite {__version__}")
            raise Quit(0)

    for command in COMMANDS if name is None else (name,):
        module = importlib.import_module(f"flowlite.cli.commands.{COMMANDS[command]}")
        found = getattr(module, command.replace("-", "_"))
        if isinstance(found, typer.Typer):
            application.add_typer(found, name=command)
        else:
            settings = {"allow_interspersed_args": command not in _WITH_OTHER_WORDS}
            application.command(command, context_settings=settings)(found)
    return application
