"""`Flow`: submits tasks, finds them again, and manages volumes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from flowlite.api.session import Session, open_session
from flowlite.api.submission import providers_of, supervisor_ahead
from flowlite.api.task import Ends, Task
from flowlite.errors import ConfigError, ProviderError
from flowlite.node.system import trace

if TYPE_CHECKING:
    from flowlite.api.candidates.ranking import Candidates
    from flowlite.api.sweeps.sweep import Element
    from flowlite.bundle.files_to_send import FilesToSend
    from flowlite.provider import Candidate, Offer, Plan, Provider, VolumeInfo
    from flowlite.spec import TaskConfig
    from flowlite.spec.options import MountOptions
    from flowlite.spec.storage import Mount
    from flowlite.state.store import InstanceRecord, TaskKey, TaskRecord


class Decorated(Protocol):
    """A function decorated with `@app.function` (`flowlite.Function`)."""

    def build_task_config(self) -> TaskConfig:
        """The task of a call without arguments."""


class TaskList(list[Task[Any]]):
    """A list of tasks, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from flowlite.display import summaries

        return summaries.of_tasks(self)


class Flow:
    """The client: submits tasks, finds them again, lists offers and volumes. Opens FLOW_HOME on first use.

    Attributes:
        volumes: Named volumes of the provider: `create(name, size_gb)`, `list()`, `delete(name)`.
    """

    def __init__(
        self, provider: str | None = None, *, notify: Callable[[str], None] | None = None
    ) -> None:
        """
        Args:
            provider: Name of the provider; None for the provider of the configuration, or else of the settings.
            notify: Called with each message to the user at submission, such as the price; by default, they are written
                to standard error.
        """
        self._provider = provider
        self._notify = notify or _to_stderr
        self._noted: set[str] = set()
        self._ends = Ends()
        self.volumes = Volumes(self)

    @staticmethod
    def should_stop() -> bool:
        """Whether a running function of a task should save and return (`flowlite.should_stop`)."""
        from flowlite.in_worker.should_stop import should_stop

        return should_stop()

    # Submitting

    def run(
        self,
        target: TaskConfig | Decorated | str | os.PathLike[str],
        mounts: Mapping[str, str | Mount | MountOptions] | None = None,
        wait: bool = False,
    ) -> Task[Any]:
        """Submits a task.

        Args:
            target: A configuration with a call or a command, a decorated function that needs no arguments, or the path
                of a task file (YAML) or of a Slurm batch script.
            mounts: Read-only buckets by path, beside those of the configuration.
            wait: Return only when the task has completed, failed or been cancelled; a failure is not raised.

        Raises:
            ConfigError: An option is wrong, or the provider does not support it.
            BundleError: The function or an argument cannot be pickled.
            CapExceeded: A price, time or cost cap forbids the launch.
        """
        config = self._config_of(target)
        if mounts:
            config = config.replace(mounts={**config.mounts, **mounts})
        task = self.submit(config)
        return task.wait() if wait else task

    def submit(
        self,
        config: TaskConfig,
        *,
        announce: Callable[[Task[Any]], None] | None = None,
        show_plan: Callable[[Candidates], None] | None = None,
        confirm: Callable[[Candidates], None] | None = None,
        element: Element | None = None,
        inputs_of: Task[Any] | None = None,
        files_now: bool = False,
        pool: str = "",
    ) -> Task[Any]:
        """Submits the call or the command of a configuration. Raises the same errors as `run`.

        Every error is found before anything is written. Once this has returned, the task no longer needs this process.
        Ctrl-C before that leaves no task behind, unless `announce` is given: it receives the task before any interrupt
        is handled, and the caller decides what happens to the task.

        Args:
            announce: Called with the task as soon as it is recorded.
            show_plan: Called before a launch that may cost money, with the places where the task may run; by default,
                `notify` gets the price.
            confirm: Called with the same after `notify` has got the plan's notes. What it raises stops the submission.
            inputs_of: The task whose call is repeated, if the configuration has none. Its project's files are sent as
                that task had them.
            files_now: Send them as they are now.
            element: The place of this task among tasks that are launched together, if `launches_together`.
            pool: The sweep whose tasks take over one another's machines, if `keeps_gangs`.
        """
        with supervisor_ahead(config, self._provider):
            trace.begin_client()
            # Imported while the supervisor imports, too.
            from flowlite import bucket_credentials
            from flowlite.api.submission import kept_project, submit
            from flowlite.supervise.cleanup import background_gc
            from flowlite.supervise.money import price_text

            with trace.span("plan"):
                config, places = self.candidates(config)
            ranked = places.ranked
            if pool:
                ranked = tuple(_with_option(each, "pool", pool) for each in ranked)
            if element is not None:
                ranked = (_with_option(ranked[0], "array", dict(element)),)
            plan = ranked[0].plan
            storage = bucket_credentials.storage_for(config)
            kept = None
            if inputs_of is not None and not files_now:
                kept = kept_project(self._session, inputs_of.record, config, places.sent_to)
            with trace.span("list the project's files"):
                travelling = None
                if kept is None:
                    earlier = None if inputs_of is None else inputs_of.record.call.get("project")
                    travelling = self.travelling(config, places.sent_to, earlier)
            if inputs_of is not None and kept is not None:
                self._note(
                    f"the project's files are those of task {inputs_of.id}, as it was submitted; --now sends them as "
                    "they are now"
                )
            paid = {each.plan.provider for each in places.ranked if each.plan.is_paid}
            if paid and show_plan is not None:
                show_plan(places)
            elif paid:
                self._note(price_text.sentence(plan))
                if places.dearest != places.best:
                    self._note(f"or, at the dearest place: {price_text.sentence(places.dearest)}")
            self.tell_notes(plan)
            if (travelling is not None or kept is not None) and _keeps_no_file(config):
                self._note(
                    "files that the command writes into its working directory are on the nodes, and are removed with "
                    "them at the end; --outputs 'PATTERN' (outputs=) brings them here"
                )
            for note in bucket_credentials.notes(storage):
                self._note(note)
            if paid and confirm is not None:
                confirm(places)
            session = self._session
            for name in sorted(paid):
                background_gc.remember_paid(session.home, name)
            made: list[Task[Any]] = []

            def tell(record: TaskRecord) -> None:
                made.append(Task(session, record))
                if announce is not None:
                    announce(made[0])

            try:
                with trace.span("submit"):
                    submit(
                        session,
                        config,
                        ranked,
                        tell,
                        storage=storage,
                        inputs_of=None if inputs_of is None else inputs_of.record,
                        travelling=travelling,
                        kept=kept,
                    )
            except KeyboardInterrupt:
                if made and announce is None:
                    # The message comes first, since a second Ctrl-C may interrupt the cancellation.
                    self._notify(
                        f"interrupted: task {made[0].name} ({made[0].id}) is being cancelled; "
                        f"`flow status {made[0].id}` shows its end"
                    )
                    made[0].cancel()
                raise
            return made[0]

    def plan(self, config: TaskConfig) -> tuple[TaskConfig, Plan]:
        """Returns what would be launched first, without launching it: the first of `candidates`."""
        config, found = self.candidates(config)
        return config, found.best

    def candidates(self, config: TaskConfig) -> tuple[TaskConfig, Candidates]:
        """Returns all places where a task may run, without launching it, with the configuration and all settings.

        Raises:
            ConfigError: An option is wrong, or no provider supports it.
            CapExceeded: A price, time or cost cap forbids the launch.
        """
        from flowlite.api.candidates.planning import plan_candidates
        from flowlite.provider import adapter_class, provider_names
        from flowlite.spec.one_or_several import ANY

        check_current_directory()
        if config.command is not None:
            from flowlite.bundle.command_files import refuse_what_is_no_program

            refuse_what_is_no_program(config)
        config = self._with_defaults(config)
        names: Sequence[str] = providers_of(config, self._provider)
        every, known = ANY in names, provider_names()
        for name in names:
            if not every and name not in known:
                adapter_class(name)
        names = known if every else names
        found = plan_candidates(
            config, names, self._adapter, only_configured=every, say=self._notify
        )
        return config, found

    def tell_notes(self, plan: Plan) -> None:
        """Tells the user the notes of a plan that were not told yet; `submit` does so before it calls `confirm`."""
        for note in plan.notes:
            self._note(note)

    def travelling(
        self, config: TaskConfig, plan: Plan, earlier: Mapping[str, Any] | None = None
    ) -> FilesToSend | None:
        """The files of this machine that are sent to the nodes of a task; None if there are none.

        Args:
            config: The task, as `plan` gave it.
            plan: Where it runs.
            earlier: The project of the task whose call is repeated, if it had one.

        Raises:
            BundleError: The files are too large, or cannot be read.
            ConfigError: The command names a file that would not exist on the nodes.
        """
        from flowlite.bundle import files_to_send
        from flowlite.settings.settings import load_settings

        return files_to_send.find(config, plan, load_settings()["max_project_size"], earlier)

    def launches_together(self, config: TaskConfig) -> bool:
        """Whether tasks like this one may be launched together, as a job array of Slurm is.

        Those whose nodes are kept are not: an element of an array knows its number, and no other task may have it.
        """
        from flowlite.spec.one_or_several import ANY, PREFER

        several = isinstance(config.gpu, tuple) or isinstance(config.region, tuple)
        names = providers_of(config, self._provider)
        asked = self._with_defaults(config)
        if asked.keep_warm or several or config.spot == PREFER or len(names) > 1 or ANY in names:
            return False
        return self._adapter(names[0]).arrays

    def keeps_gangs(self, config: TaskConfig) -> bool:
        """Whether tasks like this one take over one another's machines in a sweep: `keep_warm` is not given."""
        from flowlite.spec.one_or_several import ANY

        asked = self._with_defaults(config)
        names = providers_of(config, self._provider)
        if "keep_warm" in asked.model_fields_set or ANY in names:
            return False
        if config.is_elastic or config.volumes or config.image:
            # Such gangs are given back in any case.
            return False
        return any(self._adapter(name).keeps_gangs for name in names)

    def end_pool(self, pool: str) -> list[str]:
        """Ends the machines that a sweep keeps. Returns the problems, in words."""
        from flowlite.supervise.cleanup.warm_nodes import end_warm_nodes

        return end_warm_nodes(self._session.store, self._session.home, pool=pool)[1]

    def end_kept(self, tasks: Collection[str]) -> list[str]:
        """Ends the machines that tasks keep warm for later ones. Returns the problems, in words."""
        from flowlite.supervise.cleanup.warm_nodes import end_warm_nodes

        return end_warm_nodes(self._session.store, self._session.home, tasks=tasks)[1]

    # Finding

    def get_task(self, name: str) -> Task[Any]:
        """The task with this id, the newest task of this name, or the one with this unique prefix.

        Raises:
            NotFound: There is no such task, or the prefix fits several.
            ConfigError: This is no text.
        """
        if not isinstance(name, str):
            raise ConfigError(
                f"get_task() takes the id or the name of a task, such as task.id; {name!r} is neither"
            )
        session = self._session
        record = session.store.find_task(name)
        session.ensure()
        task: Task[Any] = Task(session, record)
        if task.needs_resume:
            from flowlite.supervise.process import resuming

            self._note(resuming.sentence(record))
        return task

    def list_tasks(
        self,
        *,
        limit: int | None = None,
        unfinished: bool = False,
        name: str | None = None,
        ids: Collection[str] | None = None,
    ) -> list[Task[Any]]:
        """All tasks of this FLOW_HOME, newest first.

        Args:
            limit: At most this many; None for all.
            unfinished: Only tasks that have not ended.
            name: Only tasks of this name.
            ids: Only tasks with these ids.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ConfigError(f"limit={limit!r} is not allowed; give a whole number of at least 0")
        if name is not None and not isinstance(name, str):
            raise ConfigError(
                f"name={name!r} is not allowed; give the name of tasks, as in 'train'"
            )
        session = self._session
        session.ensure()
        records = session.store.list_tasks(limit=limit, unfinished=unfinished, name=name, ids=ids)
        for damage in session.store.take_damage():
            self._note(damage)
        return TaskList(Task(session, record) for record in records)

    def ended_among(self, tasks: Sequence[Task[Any]]) -> list[Task[Any]]:
        """Those of many tasks that have ended, as `Task.done` tells of each: much faster."""
        return self._ends.among(tasks)

    def task_keys(self) -> list[TaskKey]:
        """Id, name and state of all tasks, newest first: much faster than `list_tasks`."""
        return self._session.store.task_keys()

    def charged_instances(self) -> dict[str, list[InstanceRecord]]:
        """The nodes of all tasks that cost something, by the id of their task."""
        return self._session.store.charged_instances()

    def instances_of(self, task: Task[Any]) -> list[InstanceRecord]:
        """The nodes of one task, as they are stored."""
        return self._session.store.instances(task.id)

    def warm_nodes(self) -> list[InstanceRecord]:
        """Nodes of ended tasks that are kept for the next one (`keep_warm`), until their `ended_at` (Unix time)."""
        from flowlite.supervise.cleanup.warm_nodes import warm_nodes

        return warm_nodes(self._session.store, self._session.home)

    def look_up_cost(self, tasks: Collection[str] | None = None) -> list[str]:
        """Asks providers what kept nodes have cost, where only a bound is known. Returns the problems, in words.

        Args:
            tasks: Only those of these tasks, by id; None for all.
        """
        from flowlite.supervise.cleanup.warm_nodes import look_up_cost

        return look_up_cost(self._session.store, self._session.home, tasks)

    def cancel(self, name: str) -> bool:
        """Requests the cancellation of a task, as `Task.cancel` does.

        Returns:
            False if it had ended already.

        Raises:
            NotFound: There is no such task.
        """
        return self.get_task(name).cancel()

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        """What the provider offers, cheapest first. If nothing fits, the nearest offers, each with the reason.

        Args:
            gpu: GPUs of each node, as in "h100:8"; None for machines without GPUs.
            num_instances: Nodes in the gang.
            spot: True for spot only, False for on demand only, None for both.
            region: Only offers of this region; None for all.

        Raises:
            ProviderError: The provider refused or failed.
        """
        return self._chosen().offers(gpu, num_instances, spot=spot, region=region)

    # Internals

    def _config_of(self, target: Any) -> TaskConfig:
        from flowlite.spec import TaskConfig

        if isinstance(target, TaskConfig):
            return target
        if getattr(type(target), "__flowlite_function__", False):
            return cast("TaskConfig", target.build_task_config())
        if not isinstance(target, str | os.PathLike):
            decorate = "decorate it with @app.function first"
            hint = decorate if callable(target) else "give a TaskConfig"
            raise ConfigError(
                f"run() takes a TaskConfig, a decorated function or the path of a task file, not {target!r}; {hint}"
            )
        if str(target).endswith((".yaml", ".yml")):
            return TaskConfig.from_yaml(Path(target))
        from flowlite.settings.settings import load_settings
        from flowlite.spec.batch import read_batch

        provider = load_settings({"provider": self._provider}).provider
        reading = read_batch(Path(target), provider=provider)
        if reading.is_array:
            raise ConfigError(
                f"{target} is an array; use `flow run {target}`, or function.map(...)"
            )
        for note in reading.notes:
            self._note(note)
        return reading.configs[0]

    def _note(self, note: str) -> None:
        # A sweep of a hundred tasks shows each note once.
        if note not in self._noted:
            self._noted.add(note)
            self._notify(note)

    def _with_defaults(self, config: TaskConfig) -> TaskConfig:
        """The configuration with the settings of the user."""
        from flowlite.settings.settings import load_settings

        return config.with_defaults(load_settings({"provider": self._provider}).task_options())

    @property
    def _session(self) -> Session:
        return open_session()

    def _chosen(self) -> Provider:
        from flowlite.settings.settings import load_settings

        return self._adapter(load_settings({"provider": self._provider}).provider)

    def _adapter(self, name: str) -> Provider:
        from flowlite.api.adapters import adapter

        return adapter(name)


def _with_option(place: Candidate, name: str, value: Any) -> Candidate:
    options = {**place.plan.options, name: value}
    return dataclasses.replace(place, plan=dataclasses.replace(place.plan, options=options))


class Volumes:
    """Named volumes of the provider. Reached as `flow.volumes`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def create(
        self,
        name: str,
        size_gb: float | None = None,
        interface: str = "file",
        region: str | None = None,
    ) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name.

        Args:
            region: The region, or the zone, that it is in; None for that of the settings.

        Raises:
            ConfigError: It cannot be made so.
        """
        from flowlite.api import import_guard
        from flowlite.spec import Volume

        import_guard.refuse("makes a volume")
        # `Volume` refuses other values, with a hint.
        checked = cast('Literal["file", "block"]', interface)
        volume = Volume(name=name, size_gb=size_gb, interface=checked)
        provider = self._flow._chosen()
        if region is not None and not provider.has_regions():
            raise ConfigError(f"region: the provider {provider.name} has no regions; leave it out")
        return provider.create_volume(volume.name, volume.size_gb, volume.interface, region)

    def list(self) -> list[VolumeInfo]:
        """All volumes, by name."""
        return [*self.look()[0]]

    def look(self) -> tuple[Sequence[VolumeInfo], Sequence[str]]:
        """All volumes, by name, and what could not be looked at, such as a region that is denied; a line each."""
        provider = self._flow._chosen()
        users = _volume_users(self._flow._session, provider.name)
        found = [
            volume
            if volume.used_by
            else dataclasses.replace(volume, used_by=_users_of(volume, users))
            for volume in sorted(provider.list_volumes(), key=lambda volume: volume.name)
        ]
        return found, provider.not_looked_at()

    def delete(self, name: str) -> None:
        """Deletes a volume and everything on it.

        Raises:
            NotFound: There is no such volume.
            ProviderError: A task uses it.
        """
        from flowlite.api import import_guard

        import_guard.refuse("deletes a volume")
        provider = self._flow._chosen()
        if users := _volume_users(self._flow._session, provider.name).get(name):
            raise ProviderError(
                f"volume {name!r} is in use by {users[0]}; wait for its end or cancel it first"
            )
        provider.delete_volume(name)


def _users_of(volume: VolumeInfo, users: dict[str, list[str]]) -> tuple[str, ...]:
    return (*users.get(volume.name, ()), *users.get(volume.location, ()))


def _volume_users(session: Session, provider: str) -> dict[str, list[str]]:
    """The unfinished tasks of this FLOW_HOME that use volumes of a provider, by the volume's name or id."""
    users: dict[str, list[str]] = {}
    for record in session.store.list_tasks(unfinished=True):
        if record.provider == provider:
            for volume in (record.config.get("volumes") or {}).values():
                users.setdefault(volume["name"], []).append(f"task {record.id}")
    return users


def check_current_directory() -> None:
    """Raises ConfigError if the current directory was removed, since files are searched from there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "the current directory was removed; change to one that exists, such as with `cd ~`"
        ) from None


def _to_stderr(text: str) -> None:
    from flowlite.display.screen import program_screen

    program_screen().tell(f"flowlite: {text}")


def _keeps_no_file(config: TaskConfig) -> bool:
    """Whether nothing of a task says where its files are to be kept. A function may return what is to be kept."""
    return config.command is not None and not (
        config.outputs or config.checkpoint or config.volumes
    )
