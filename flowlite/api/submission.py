"""Turns a checked configuration into a task in the store. Leaves nothing behind if that fails.

What a submission needs is imported by the functions: the supervisor is started before that (`supervisor_ahead`), so
that both processes import side by side.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError
from flowlite.in_worker import hidden_modules
from flowlite.node.system import trace

if TYPE_CHECKING:
    from types import FrameType

    from flowlite.api.session import Session
    from flowlite.bundle.files_to_send import FilesToSend
    from flowlite.provider import Candidate, Plan
    from flowlite.spec import TaskConfig
    from flowlite.state.store import TaskRecord
    from flowlite.supervise.process.launch import TaskDraft
    from flowlite.supervise.record.paths import TaskPaths

_LONGEST_FUNCTION = 200


@contextmanager
def supervisor_ahead(config: TaskConfig, provider: str | None = None) -> Iterator[None]:
    """A block in which a task is submitted. Its supervisor is started, unless a block around it has done so.

    `provider` is the one that the caller has chosen, if any. Raises ConfigError if no task may be submitted here.
    """
    # Most modules are imported in this block, and may find a file of the user's in place of Python's own.
    with hidden_modules.named(), _started_ahead(config, provider):
        yield


def _started_ahead(config: TaskConfig, provider: str | None) -> AbstractContextManager[None]:
    from flowlite.api import import_guard
    from flowlite.in_worker.on_node import refuse_on_a_node
    from flowlite.settings.flow_home import home
    from flowlite.supervise.process import supervisor_process

    import_guard.refuse("starts a task")
    refuse_on_a_node()
    if config.keep_warm or supervisor_process.ahead() is not None:
        # With `keep_warm`, a supervisor that waits for its next task usually leads this one.
        return nullcontext()
    return _without_collection(
        supervisor_process.started_ahead(home(), providers_of(config, provider)[0])
    )


@contextmanager
def _without_collection(ahead: AbstractContextManager[None]) -> Iterator[None]:
    # The garbage collector would look several times through what the submission imports, and find nothing.
    enabled = gc.isenabled()
    with ahead:
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


def providers_of(config: TaskConfig, provider: str | None = None) -> tuple[str, ...]:
    """The names of the providers that a task may run at, or (ANY,). Parameters as of `supervisor_ahead`."""
    from flowlite.settings.settings import load_settings
    from flowlite.spec.one_or_several import values_of

    asked = provider or config.provider
    return values_of(asked or load_settings({"provider": provider})["provider"])


def submit(
    session: Session,
    config: TaskConfig,
    places: Sequence[Candidate],
    announce: Callable[[TaskRecord], None],
    *,
    storage: Mapping[str, Any] | None = None,
    inputs_of: TaskRecord | None = None,
    travelling: FilesToSend | None = None,
    kept: Mapping[str, Any] | None = None,
) -> None:
    """Records the task and starts its supervisor.

    Ctrl-C is held back from the moment the task is recorded until it has been announced, so that no task runs that the
    caller does not know of.

    Args:
        places: Where it may run, the preferred place first.
        storage: The credentials of its buckets, from `bucket_credentials.storage_for`.
        inputs_of: The task whose call is repeated. Its secrets are used where none are set here.
        travelling: The files of this machine that are sent to its nodes.
        kept: Instead of these, the project of the task whose call is repeated, from `kept_project`.

    Raises:
        ConfigError: There is nothing to run, or a secret has no value.
        BundleError: The function or an argument cannot be sent to a node.
        StoreError: FLOW_HOME cannot be written.
    """
    from flowlite.notify.targets import missing_library
    from flowlite.supervise.process import launch, notifications

    secrets = _secrets(config, None if inputs_of is None else session.paths(inputs_of.id))
    for target in config.notify:
        if missing := missing_library(target):
            raise ConfigError(f"notify: {missing}")
    after = _ids_of(session, config.after)
    with launch.draft_task(session.home) as draft:
        trace.write_to(draft.paths.trace)
        _note_packages(places, {**os.environ, **config.environment, **secrets}, draft)
        with launch.explained(session.home):
            notifications.keep_targets(draft.paths, config.notify, os.getcwd())
        if inputs_of is not None and config.command is None:
            function, call = _call_again(config, draft, inputs_of, session.paths(inputs_of.id))
        else:
            with trace.span("bundle"):
                function, call = _call(config, draft, _worked_in(config, places, travelling))
        if secrets:
            # A shell may have put the value of a variable into the command line.
            from flowlite.output.redact import Mask

            function = Mask(secrets.values())(function)
        if kept is not None:
            call["project"] = _project_again(kept, draft)
        elif travelling is not None:
            earlier = {} if inputs_of is None else inputs_of.call.get("project", {})
            call["project"] = _project(travelling, session.home, draft, earlier.get("main"))
        with _interrupts_held_back():
            record = launch.submit(
                session.store,
                draft,
                name=config.name or _name_of(function),
                function=function,
                config={**config.to_dict(), "after": after},
                plan=places[0].plan,
                candidates=places if len(places) > 1 else (),
                call=call,
                secrets=secrets,
                storage=storage,
                outputs_below=_outputs_below(),
            )
            announce(record)


def _ids_of(session: Session, after: Sequence[str]) -> list[str]:
    """The ids of the tasks that must have completed before. Raises NotFound."""
    from flowlite.errors import NotFound

    try:
        return [session.store.find_task(name).id for name in after]
    except NotFound as error:
        raise NotFound(f"after: {error}") from None


def check_after(after: Sequence[str]) -> None:
    """Checks that the tasks that must have completed before exist. Writes nothing. Raises NotFound."""
    from flowlite.api.session import open_session
    from flowlite.errors import NotFound
    from flowlite.settings.flow_home import home

    if not after:
        return
    if not (home() / "state.db").exists():
        raise NotFound(f"after: no task {after[0]!r}; there are no tasks yet")
    _ids_of(open_session(), after)


def _outputs_below() -> Path | None:
    """The current directory, if it is writable."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return here if os.access(here, os.W_OK) else None


def config_of_task(record: TaskRecord, paths: TaskPaths, changes: Mapping[str, Any]) -> TaskConfig:
    """The configuration of a submitted task, with some options changed; without its call. Raises SpecError.

    The record has a value for every option. Those that are the default count as not given, so that caps that were set
    since then hold, and no message names an option that the user did not choose. The task's files have the rest.
    """
    from flowlite.spec import TaskConfig
    from flowlite.supervise.process import notifications

    if "command" in changes:
        raise ConfigError(
            "command: it cannot be changed; use `flow run -- COMMAND` for another one"
        )
    kept: dict[str, Any] = {"notify": notifications.targets_of(paths)[0], "after": ()}
    if not record.candidates:
        kept["provider"] = record.provider
    defaults = TaskConfig().to_dict()
    given = {
        name: value
        for name, value in record.config.items()
        if name not in defaults or value != defaults[name]
    }
    config = TaskConfig.from_json({"name": record.name, **given, **kept})
    config = config.replace(**changes)
    return config.with_batch(record.call["batch"]) if "batch" in record.call else config


def _secrets(config: TaskConfig, inputs_of: TaskPaths | None) -> dict[str, str]:
    """The values of the secrets: those that are set here, else those of the repeated task."""
    kept: dict[str, str] = {}
    if inputs_of is not None:
        with suppress(OSError, ValueError):
            found = json.loads(inputs_of.secrets.read_bytes())
            kept = found if isinstance(found, dict) else {}
    found = {}
    for secret in config.secrets:
        try:
            found[secret.name] = secret.resolve()
        except ConfigError:
            if secret.name not in kept:
                raise
            found[secret.name] = kept[secret.name]
    return found


def _call_again(
    config: TaskConfig, draft: TaskDraft, record: TaskRecord, paths: TaskPaths
) -> tuple[str, dict[str, Any]]:
    """As `_call`, for the call of an earlier task and its files, with the same code and the same arguments."""
    from flowlite.bundle.project_snapshot import refuse_changed_input
    from flowlite.node.serialization.envelope import open_envelope

    def again(place: str, sha256: str, what: str) -> str:
        name = Path(place).name
        _share(paths.bundle / name, draft.paths.bundle / name)
        refuse_changed_input(paths.bundle / name, sha256, what, "run it from its program")
        return str(draft.paths.bundle / name)

    call: dict[str, Any] = {"results": config.results, "start": config.start}
    kept = record.call
    try:
        call["bundle"] = again(kept["bundle"], kept["sha256"], "its call")
        call["source"] = [
            {**each, "zip": again(each["zip"], each["sha256"], "a part of its code")}
            for each in kept["source"]
        ]
        header = open_envelope(call["bundle"], sha256=kept["sha256"]).header
    except FileNotFoundError:
        raise ConfigError(
            f"the inputs of task {record.id} are not here any more: they were removed some time after its end "
            "(settings keep_inputs_days, keep_gb); run it from its program"
        ) from None
    made_by, here = (".".join(map(str, of)) for of in (header["python"], sys.version_info[:2]))
    if config.python is None and made_by != here:
        raise ConfigError(
            f"task {record.id} was submitted from Python {made_by}, and this is {here}, which cannot load its call; "
            f"add --set python='\"{made_by}\"', or use a Python {made_by}"
        )
    with suppress(FileNotFoundError):
        _share(paths.call_text, draft.paths.call_text)
    call = {name: value for name, value in kept.items() if name != "project"} | call
    return record.function, call


def _share(path: Path, to: Path) -> None:
    """Hard-links a file, so that it outlives the first name; copies it if the file system has no hard links."""
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, to)


def command_line(command: str | Sequence[str]) -> str:
    """A command as it is typed in a shell."""
    return command if isinstance(command, str) else shlex.join(command)


def _note_packages(
    places: Sequence[Candidate], variables: Mapping[str, str], draft: TaskDraft
) -> None:
    """Writes the settings of package indexes, and values of the variables that requirements name, for the nodes."""
    specs = [spec for each in places if (spec := each.plan.options.get("python_spec")) is not None]
    if not specs:
        return
    from flowlite.node.system.atomic_files import write_atomically
    from flowlite.python_request import index_settings, variables_in

    named = variables_in("".join(spec.get("requirements") or "" for spec in specs))
    found = {name: variables[name] for name in sorted(named & variables.keys())}
    found |= index_settings()
    if found:
        write_atomically(draft.paths.packages, json.dumps(found).encode())


def _worked_in(
    config: TaskConfig, places: Sequence[Candidate], travelling: FilesToSend | None
) -> Path | None:
    """The directory of this machine in which the workers start, or of which theirs is a copy; None if there is none."""
    if travelling is not None:
        return Path(travelling.listing.root, travelling.start)
    here = places[0].plan.options.get("workdir")
    return Path(here) if here is not None and config.directory_on_node is None else None


def _call(
    config: TaskConfig, draft: TaskDraft, directory: Path | None
) -> tuple[str, dict[str, Any]]:
    """The name to show for the function or command, and `AgentConfig.call` with paths on this machine.

    `directory` is that of `_worked_in`.
    """
    if config.command is not None:
        text = command_line(config.command)
        shell = isinstance(config.command, str)
        argv = ["sh", "-c", text] if shell else list(config.command)
        batch = {} if config.batch is None else {"batch": config.batch}
        from flowlite.bundle.command_files import refuse_launchers
        from flowlite.bundle.script import script_call

        refuse_launchers(config, directory)
        start = script_call(config, directory)
        return text[:_LONGEST_FUNCTION], {"kind": "command", "argv": argv, **start, **batch}
    call = config.call
    if call is None:
        raise nothing_to_run()
    from flowlite.bundle.call import build_bundle
    from flowlite.bundle.call_text import call_text
    from flowlite.node.system.atomic_files import write_atomically
    from flowlite.supervise.process.launch import explained

    bundle = build_bundle(
        call.function,
        call.args,
        call.kwargs,
        directory=draft.paths.bundle,
        results=config.results,
        start=config.start,
    )
    text = call_text(bundle.function, call.args, call.kwargs)
    with explained(draft.paths.home):
        write_atomically(draft.paths.call_text, text.encode("utf-8", "replace"))
    # The bundle's directory is laid out here as on a node.
    return bundle.function, bundle.call_config(str(draft.paths.bundle))


def nothing_to_run() -> ConfigError:
    """The error about a configuration without a command and without a call."""
    return ConfigError(
        "the configuration has nothing to run: give it a command (`command:` in a task file), or build it from a "
        "function with `function.build_task_config(…)`"
    )


def _project(
    travelling: FilesToSend, home: Path, draft: TaskDraft, main: str | None
) -> dict[str, Any]:
    """Takes a snapshot of the files that are sent to nodes. Returns the entry "project" of the call.

    `main` is the program's file in the project, if the call of an earlier task is repeated.
    """
    from flowlite.bundle.main_file import note_main_file
    from flowlite.bundle.project_snapshot import MANIFEST, take_snapshot

    target = draft.paths.bundle / MANIFEST
    root = travelling.listing.root
    project = {
        "manifest": str(target),
        "sha256": take_snapshot(home, travelling.listing, travelling.others, target),
        "root": root,
        "start": travelling.start,
    }
    if main is None and (file := note_main_file()) is not None:
        main = os.path.relpath(os.path.realpath(file.path), root)
    if main in travelling.listing.files:
        project["main"] = main
    return project


def kept_project(
    session: Session, record: TaskRecord, config: TaskConfig, plan: Plan
) -> Mapping[str, Any] | None:
    """The project that an earlier task was submitted with, for a task that repeats its call.

    None if no files are sent to the nodes of the new task, the earlier one had none, or options about files differ.
    Raises ConfigError if some of its files are not stored any more, or were changed.
    """
    from flowlite.bundle.project_snapshot import use_again
    from flowlite.node.project_files.manifest import ManifestError

    project: Mapping[str, Any] | None = record.call.get("project")
    if project is None or plan.options.get("workdir") is not None:
        return None
    given = config.to_dict()
    if any(given.get(name) != record.config.get(name) for name in ("files", "sync", "workdir")):
        return None
    try:
        manifest = session.paths(record.id).bundle / Path(project["manifest"]).name
        lost = use_again(session.home, manifest, str(project["sha256"]))
    except (OSError, ManifestError):
        lost = ["its manifest"]
    if lost:
        more = f" and {len(lost) - 1} more files" if len(lost) > 1 else ""
        raise ConfigError(
            f"the project's files as task {record.id} had them are not here any more ({lost[0]}{more}): they were "
            "removed some time after its end; add --now to send them as they are now"
        )
    return project


def _project_again(kept: Mapping[str, Any], draft: TaskDraft) -> dict[str, Any]:
    from flowlite.bundle.project_snapshot import MANIFEST

    target = draft.paths.bundle / MANIFEST
    if not target.exists():
        _share(Path(kept["manifest"]), target)
    return {**kept, "manifest": str(target)}


def _name_of(function: str) -> str:
    """A name for a task without one: that of the script or module, else of the program or function."""
    words = function.split()
    script = next((PurePath(word).stem for word in words if word.endswith(".py")), None)
    if script is None and "-m" in words[:-1]:
        script = words[words.index("-m") + 1].rpartition(".")[2]
    if script is None and len(words) == 1 and "/" not in function:
        script = function.rpartition(".")[2]
    script = script or PurePath(words[0]).name
    plain = re.sub(r"[^A-Za-z0-9]+", "-", script).strip("-")[:63].strip("-")
    return plain or "task"


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    # Python handles Ctrl-C in the main thread only; not at all, and cannot restore what does, in a program that has set
    # its own handler before it started Python.
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is None
    ):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])
        elif held and before == signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)
