"""`FlowApp` and `Function`: the decorator, and what can be done with a decorated function.

pydantic and the client are imported when a value is checked or a task is started, not with this module. On a node
options are not checked again: they were checked before submission, and the check would slow down the workers' start.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from flowlite.api import remote
from flowlite.api.remote_method import RemoteMethod
from flowlite.api.sweeps.sweep_method import SweepMethod
from flowlite.api.user_signature import takes_the_users_arguments
from flowlite.api.world_of_one import world_of_one
from flowlite.errors import SpecError
from flowlite.in_worker import hidden_modules
from flowlite.in_worker.on_node import on_a_node, refuse_on_a_node
from flowlite.in_worker.signatures import signature_of

if TYPE_CHECKING:
    from typing import Unpack

    from flowlite.api.task import Task
    from flowlite.spec.options import CommonOptions, TaskOptions
    from flowlite.spec.task import TaskConfig

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)

# Options that are merged key by key when they are overridden; all others are replaced.
MERGED = frozenset({"environment", "mounts", "volumes"})


class _OfOneArgument(Protocol[A_contra, R]):
    """A function that can be called with one value."""

    def __call__(self, value: A_contra, /) -> R: ...


class FlowApp:
    """A group of functions with common options.

    Attributes:
        name: Prefix of the names of its tasks ("digits" makes "digits-train"); None for no prefix.
        defaults: Options of all its functions. An option of the function itself takes precedence.
    """

    def __init__(
        self,
        name: str | None = None,
        provider: str | None = None,
        **defaults: Unpack[CommonOptions],
    ) -> None:
        """
        Args:
            name: Prefix of the names of its tasks; None for no prefix.
            provider: Provider of all its functions; None for the setting `provider` (default "local").
            **defaults: Any option of `@app.function` except `name`; each is described at `TaskConfig`.

        Raises:
            SpecError: An option is unknown or has a wrong value.
        """
        self.name = name
        options = _merge({}, defaults)
        if provider is not None:
            options["provider"] = provider
        self.defaults = options
        if options or name is not None:
            _check("FlowApp", {**options, "name": name})

    @overload
    def function(self, fn: Callable[P, T], /) -> Function[P, T]: ...

    @overload
    def function(
        self, /, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, T]], Function[P, T]]: ...

    def function(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Makes a `Function`, as `@app.function` or `@app.function(gpu="h100:8", …)`.

        The options, each of which is described at `TaskConfig`:

        - the gang: `num_instances`, `spares`, `processes_per_node`, `distributed_mode`, `name`, `start`,
          `preflight`, `join_timeout_seconds`
        - a gang that shrinks and grows (`num_instances=(2, 8)`): `settle_seconds`, `heal_seconds`, `grow`
        - machines: `provider`, `region`, `gpu`, `cpu`, `memory`, `internode_interconnect`, `intranode_interconnect`,
          `priority`, `spot`, `prefer`, `keep_warm`, `slurm`
        - the start: `after`, `max_wait_hours`
        - limits: `max_price_per_hour`, `max_run_time_hours`, `max_cost`
        - software: `dependencies`, `python`, `image`, `setup`, `setup_timeout`
        - the program: `environment`, `secrets`, `workdir`, `sync`, `files`
        - data: `volumes`, `mounts`, `checkpoint`, `outputs`, `results`
        - the end: `retries`, `stop_signal`, `grace_seconds`, `notify`

        Args:
            fn: A function written with `def`, `async def` or `lambda`; not a method, class or generator.
            **options: Each is described at `TaskConfig`.

        Raises:
            SpecError: An option is unknown or has a wrong value, or this kind of function cannot run on a node.
        """

        def decorate(fn: Callable[P, T]) -> Function[P, T]:
            return Function(fn, self, options)

        return decorate if fn is None else decorate(fn)

    def __repr__(self) -> str:
        given = [repr(self.name)] if self.name else []
        given += [f"{name}={value!r}" for name, value in self.defaults.items()]
        return f"FlowApp({', '.join(given)})"


class Function(Generic[P, R]):
    """A decorated function. A plain call runs it in this process; `remote`, `spawn` and `map` run it on gangs of nodes.

    Made by `FlowApp.function`. On a gang, every worker calls the function once with the same arguments.
    """

    __flowlite_function__ = True
    __wrapped__: Callable[P, R]
    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[P, R], app: FlowApp, options: Mapping[str, Any]) -> None:
        _refuse_what_cannot_travel(fn)
        functools.update_wrapper(self, fn)
        if self.__module__ == "__main__" and not on_a_node():
            from flowlite.bundle.main_file import note_main_file

            note_main_file()
        self._module_spec = _spec_of(self.__module__)
        self._overrides: dict[str, Any] = {}
        self._app = app
        self._given = _merge({}, options)
        self._options = _merge(app.defaults, self._given)
        if "command" in self._given:
            raise SpecError(
                f"@app.function on {self.__name__}: command: a function is its own command; "
                "use `flow run -- …` or TaskConfig(command=…)"
            )
        _check(f"@app.function on {self.__name__}", self._options)

    def __get__(self, instance: object, owner: type | None = None) -> Function[P, R]:
        """Returns itself: a decorated function is never a method.

        Python's `help()` takes an object that has this method for a function, and shows its signature and docstring.
        """
        return self

    # Local calls

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in this process.

        Outside of a gang, the variables of a worker (RANK, WORLD_SIZE, MASTER_ADDR …) are set for the call as in a gang
        of one worker, and restored afterwards. An async function returns a coroutine, as without the decorator.
        """
        self._renew()
        with world_of_one(self.__name__):
            value = self.__wrapped__(*args, **kwargs)
        return cast("R", self._awaited(value)) if isinstance(value, CoroutineType) else value

    async def _awaited(self, value: Coroutine[Any, Any, Any]) -> Any:
        with world_of_one(self.__name__):
            return await value

    @takes_the_users_arguments
    def local(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same as a plain call: runs the function here, in this process."""
        return self(*args, **kwargs)

    # Calls on a gang

    @property
    def remote(self) -> RemoteMethod[P, R]:
        """`train.remote(…)` runs the function on its gang and waits; it returns what rank 0 returned.

        `await train.remote.aio(…)` does the same from an event loop. Ctrl-C, or cancelling the await, cancels the task.
        Meanwhile its phases and its output are shown on standard error, as the setting `show_logs` says.

        Both raise ConfigError, BundleError, CapExceeded or ProviderError if nothing was started, and TaskFailed if the
        launch failed, or a worker was killed or exited with a status other than 0. If a worker raised an exception,
        that exception is raised, as its own type, with its traceback as `RemoteTraceback` in `__cause__`.
        """
        return RemoteMethod(self.__wrapped__, self.build_task_config)

    @overload
    def spawn(
        self: Function[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Task[T]: ...

    @overload
    def spawn(self: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]: ...

    @takes_the_users_arguments
    def spawn(self, /, *args: P.args, **kwargs: P.kwargs) -> Task[Any]:
        """Starts the function on its gang and returns as soon as the task is recorded.

        The task does not need this process: `Flow().get_task(name)` finds it from any other process.

        Raises:
            ConfigError: The call or an option is wrong; nothing was started.
            BundleError: The function, an argument or a captured variable cannot be pickled; nothing was started.
            CapExceeded: A price, time or cost cap forbids the launch; nothing was started.
        """
        refuse_on_a_node()
        return remote.start(self.build_task_config(*args, **kwargs))

    @property
    def map(self: _OfOneArgument[A, T]) -> SweepMethod[A, T]:
        """`train.map(values)` runs one task per value and yields their results in the order of the values.

        `async for result in train.map.aio(values)` does the same from an event loop. Both are lazy: the first tasks
        start when the first result is asked for. Leaving the loop early cancels the tasks that still run.

        `max_concurrent=8` limits the tasks that run at the same time. With `return_exceptions=True` the exception of a
        failed task is yielded in place of its result; otherwise the first failure is raised, and all other tasks are
        cancelled. If the values have a length, as a list, a range and an array do, all calls are checked before any
        task starts: ConfigError says which does not fit the function.
        """
        return cast("Function[..., T]", self)._sweep("map", lambda value: (value,))

    @property
    def starmap(self) -> SweepMethod[Sequence[Any], R]:
        """As `map`; each element is the sequence of all positional arguments of one call: `starmap([(1, 2), (3, 4)])`.

        ConfigError says which element is not a sequence of arguments.
        """
        return self._sweep("starmap", _arguments_of)

    # Options and configuration

    def options(self, **overrides: Unpack[TaskOptions]) -> Function[P, R]:
        """The same function with other options; the original is unchanged.

        `environment`, `mounts` and `volumes` are merged key by key, and None empties them. Every other option is
        replaced.

        Raises:
            SpecError: An option is unknown or has a wrong value.
        """
        self._renew()
        changed = Function(self.__wrapped__, self._app, _merge(self._given, overrides))
        changed._overrides = _merge(self._overrides, overrides)
        return changed

    @takes_the_users_arguments
    def build_task_config(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskConfig:
        """The configuration that runs this call, for `Flow.run`.

        Raises:
            ConfigError: The call does not fit the function's signature; the message shows the signature.
        """
        return self._with_call(self._config(), args, kwargs)

    def _build_task_config(self, command: str = "") -> TaskConfig:
        """The configuration that runs the function without arguments, or a command in its place (the guide's name)."""
        if command:
            return self._config().replace(command=command)
        build = cast("Callable[[], TaskConfig]", self.build_task_config)
        return build()

    def _with_call(
        self, config: TaskConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskConfig:
        from flowlite.bundle.signature import bind
        from flowlite.spec.task import BoundCall

        bind(self.__wrapped__, args, kwargs)
        return config.with_call(BoundCall(self.__wrapped__, args, kwargs))

    def _renew(self) -> None:
        """Becomes what its module has under its name, if that was loaded again since (autoreload in a notebook).

        Else `from train import train` would run what was edited meanwhile, and nothing would tell. Autoreload updates
        plain functions in the same way.
        """
        spec = _spec_of(self.__module__)
        if spec is self._module_spec:
            return
        self._module_spec = spec
        found = _found_by_name(self) if spec is not None else None
        if isinstance(found, Function) and found is not self:
            functools.update_wrapper(self, found.__wrapped__)
            self._app, self._given = found._app, _merge(found._given, self._overrides)
            self._options = _merge(self._app.defaults, self._given)

    def _config(self) -> TaskConfig:
        self._renew()
        options = {"name": self._task_name(), **self._options}
        return _checked(f"@app.function on {self.__name__}", options)

    def _task_name(self) -> str:
        own = re.sub(r"[^A-Za-z0-9]+", "-", self.__name__).strip("-") or "function"
        prefix = f"{self._app.name}-" if self._app.name else ""
        return f"{prefix}{own}"[:63]

    def _sweep(
        self, method: str, arguments_of: Callable[[Any], tuple[Any, ...]]
    ) -> SweepMethod[Any, R]:
        def start(
            calls: Iterable[tuple[Any, ...]], most: int, return_exceptions: bool, pauses: bool
        ) -> Generator[Any, None, None]:
            # The options are checked once: there may be a hundred thousand calls.
            common = self._config()
            if common.checkpoint is not None and not (isinstance(calls, list) and len(calls) < 2):
                raise SpecError(
                    f"{self.__name__}.{method}: all calls would copy their checkpoints to {common.checkpoint.sync}, "
                    "and each would go on from those of another; give each call a place of its own, as in "
                    f"{self.__name__}.options(checkpoint={{…, 'sync': f'…/{{value}}'}}).spawn(value)"
                )
            configs: Iterable[TaskConfig] = (self._with_call(common, call, {}) for call in calls)
            if isinstance(calls, list):
                configs = list(configs)
            return remote.call_many(common, configs, most, return_exceptions, pauses)

        return SweepMethod(method, self.__name__, arguments_of, start)

    # Pickling and repr

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles by name if the name leads back to this object; else by value, as for closures.

        Processes that exchange plain pickles (multiprocessing) share the same `__main__`. cloudpickle is used to reach
        another program, whose `__main__` is a different module.
        """
        if _found_by_name(self) is self and (
            self.__module__ != "__main__" or not _asked_by_cloudpickle()
        ):
            return self.__qualname__
        return Function, (self.__wrapped__, self._app, self._given)

    def described(self) -> bytes:
        """The app and options, pickled, from which `redecorate` makes this object again."""
        import pickle

        return pickle.dumps((self._app.name, self._app.defaults, self._given))

    def __repr__(self) -> str:
        options = "".join(f" {name}={value!r}" for name, value in self._options.items())
        with suppress(ValueError, TypeError):
            return f"<Function {self.__name__}{signature_of(self.__wrapped__)}{options}>"
        return f"<Function {self.__name__}{options}>"

    def _repr_html_(self) -> str | None:
        if on_a_node():
            return None
        from flowlite.display import summaries

        shown = self.__name__
        with suppress(ValueError, TypeError):
            shown += str(signature_of(self.__wrapped__))
        return summaries.of_function(shown, self._options, self.__wrapped__)


def _spec_of(module: str) -> object:
    """What a module was loaded from; another object each time that it is loaded."""
    return getattr(sys.modules.get(module), "__spec__", None)


def _check(what: str, options: Mapping[str, Any]) -> None:
    if not on_a_node():
        _checked(what, options)


def _checked(what: str, options: Mapping[str, Any]) -> TaskConfig:
    with hidden_modules.named():
        from flowlite.spec.task import TaskConfig

    try:
        return TaskConfig(**dict(options))
    except SpecError as error:
        raise SpecError("\n".join(f"{what}: {line}" for line in str(error).splitlines())) from None


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        value = _own(value)
        if name in MERGED and isinstance(value, dict) and isinstance(below, dict):
            value = {**below, **value}
        merged[name] = value
    return merged


def _own(value: Any) -> Any:
    """A copy of a value that the caller may still change."""
    if isinstance(value, Mapping):
        return {key: _own(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, list) else value


def _refuse_what_cannot_travel(fn: object) -> None:
    """Raises SpecError if the object is not a plain function; the message has the reason and the alternative."""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    what = f"@app.function on {name}"
    if isinstance(fn, Function):
        raise SpecError(f"{what}: it is decorated already; change its options with .options(…)")
    if isinstance(fn, str | int | float | Mapping):
        raise SpecError(f"@app.function({fn!r}): options go by name, as in gpu='h100:8'")
    if isinstance(fn, type):
        raise SpecError(f"{what}: a class cannot run on a node; decorate a function that uses it")
    if isinstance(fn, staticmethod | classmethod) or inspect.ismethod(fn):
        raise SpecError(
            f"{what}: a method cannot run on a node; decorate a function outside the class"
        )
    if not inspect.isfunction(fn):
        raise SpecError(f"{what}: only functions written with def or lambda can run on a node")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise SpecError(
            f"{what}: a generator cannot be sent back from a node; return a list, or write to a volume"
        )
    outer = fn.__qualname__.rpartition(".")[0]
    # "<locals>", or "<listcomp>" and the like for a lambda in a comprehension; else it is a class.
    if outer and not outer.endswith(">"):
        raise SpecError(
            f"{what}: a method needs its object, which stays here; decorate a function outside the class"
        )


def _arguments_of(call: Any) -> tuple[Any, ...]:
    """The arguments of one call of `starmap`. Raises SpecError if they are not a sequence."""
    if isinstance(call, str | bytes | Mapping) or not isinstance(call, Iterable):
        raise SpecError(
            f"starmap: {call!r} is no sequence of arguments; write ({call!r},), or use map() for one argument each"
        )
    return tuple(call)


def redecorate(fn: Callable[..., Any], described: bytes) -> Function[..., Any]:
    """Rebuilds, in a worker, a `Function` that was sent by value.

    Its options matter only if a task starts other tasks, which needs all of flowlite on the node.
    """
    import pickle

    try:
        name, defaults, given = pickle.loads(described)
    except ImportError:
        name, defaults, given = None, {}, {}
    app = FlowApp()
    app.name, app.defaults = name, defaults
    return Function(fn, app, given)


def _asked_by_cloudpickle() -> bool:
    """Whether the pickler that calls `__reduce__` belongs to cloudpickle, or to a copy of it (Ray has one)."""
    frame = sys._getframe(2)
    return "cloudpickle" in str(frame.f_globals.get("__name__"))


def _found_by_name(function: Function[..., Any]) -> object:
    """What the function's module has under its name."""
    found: object = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found
