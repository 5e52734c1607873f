"""`function.remote`: runs a call on a gang and waits for it, with a variant for event loops."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from flowlite.api import remote
from flowlite.api.user_signature import takes_the_users_arguments
from flowlite.errors import RemoteTraceback
from flowlite.in_worker.on_node import refuse_on_a_node
from flowlite.in_worker.signatures import signature_of

if TYPE_CHECKING:
    from types import MethodType

    from flowlite.spec.task import TaskConfig

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class RemoteMethod(Generic[P, R]):
    """Runs the function on its gang and waits; returns what rank 0 returned.

    Call it as the function itself. `await function.remote.aio(…)` does the same from an event loop.
    """

    def __init__(self, function: Callable[P, R], configure: Callable[P, TaskConfig]) -> None:
        self._configure = configure
        self.__name__ = "remote"
        self.__doc__ = type(self).__call__.__doc__
        self.__wrapped__ = function
        with suppress(ValueError, TypeError):
            self.__signature__ = signature_of(function)

    def __get__(self, instance: object, owner: type | None = None) -> RemoteMethod[P, R]:
        """Returns itself; `help()` takes what has this method for a function."""
        return self

    @overload
    def __call__(
        self: RemoteMethod[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    def __call__(self: RemoteMethod[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Runs the function on its gang and waits; returns what rank 0 returned.

        Ctrl-C cancels the task. Meanwhile its phases and its output are shown on standard error, as the setting
        `show_logs` says.

        Raises:
            ConfigError: The call or an option is wrong; nothing was started.
            BundleError: The function, an argument or a captured variable cannot be pickled; nothing was started.
            CapExceeded: A price, time or cost cap forbids the launch; nothing was started.
            ProviderError: The provider refused or failed before the task was submitted.
            TaskFailed: The launch failed, or a worker was killed or exited with a status other than 0. If a worker
                raised an exception, that exception is raised instead, as its own type, with its traceback as
                `RemoteTraceback` in `__cause__`.
            TaskCancelled: The task was cancelled.
            ResultUnavailable: The return value could not be sent back or cannot be loaded here.
        """
        refuse_on_a_node()
        config = self._configure(*args, **kwargs)
        try:
            return remote.call(config)
        except Exception as error:
            if isinstance(error.__cause__, RemoteTraceback):
                # It was raised on a node; where flowlite raised it again says nothing.
                error.__traceback__ = None
            raise

    @overload
    async def aio(
        self: RemoteMethod[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def aio(self: RemoteMethod[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @takes_the_users_arguments
    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The same call from an event loop: `await train.remote.aio(lr=0.1)`.

        Cancelling it, as a timeout of `asyncio.wait_for` does, cancels the task, since the caller has no handle on it.
        To keep the task, use `task = train.spawn(…)` and `await task`. Raises the same errors as a plain call.
        """
        refuse_on_a_node()
        return await remote.call_async(self._configure(*args, **kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as an attribute of the function: a pool of processes takes it (`pool.map(train.remote, …)`)."""
        return getattr, (cast("MethodType", self._configure).__self__, "remote")

    def __repr__(self) -> str:
        return f"<remote call of {getattr(self.__wrapped__, '__name__', self.__wrapped__)}>"
