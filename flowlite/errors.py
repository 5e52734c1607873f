"""Every error flowlite raises, drawn as one tree.

    FlowError                       exit code  what it is about
    ├── ConfigError (ValueError)        2      an option, a file or a setting is wrong; nothing was started
    │   ├── SpecError                   2      a value of the decorator, of TaskConfig or of a task file
    │   └── BundleError                 2      the function, an argument or a captured variable cannot travel
    │       └── ArgumentError (TypeError)
    │                                   2      the arguments do not fit the function's signature
    ├── NotFound (LookupError)          3      no task, volume or provider of that name
    ├── CapExceeded                     4      a price, time or cost cap forbids the launch
    ├── ProviderError                   5      the provider refused or failed
    │   ├── CapacityUnavailable         5      nothing free now; asking again later may work
    │   ├── QuotaExceeded               5      the account may not have so much; the message names the quota
    │   ├── PermissionRefused           5      credentials are missing, wrong, or not allowed to do that
    │   └── NodeUnreachable             5      a node does not answer
    │       ├── HostKeyError            5      a host's key is unknown, or not the one it had before
    │       └── AnswerTooLong           5      a node says more than can be kept here
    ├── StoreError                      1      the state database cannot be used
    │   ├── StoreDamaged                1      its file, or a row of it, is damaged or gone
    │   └── LeaseLost                   1      another supervisor has taken this task over
    ├── TaskFailed                      1      the gang failed; `.failures` says which ranks, and how
    │   └── RemoteError                 1      a worker's exception whose own type cannot be rebuilt here
    ├── TaskCancelled                   1      somebody cancelled the task
    ├── ResultUnavailable               1      there is no result (yet, or of that rank)
    └── TaskTimeout (TimeoutError)      1      waiting took longer than the caller allowed; the task goes on

Each message says what happened, where, and what to do next. A worker's own exception is raised as its own type, with
`RemoteTraceback` as its cause. `BundleWarning` is the one warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowlite import terminal


class FlowError(Exception):
    """Base of all errors of flowlite. `exit_code` is what the `flow` command ends with."""

    exit_code = 1

    @property
    def text(self) -> str:
        """The message as it was made; it may hold what a node said, byte for byte."""
        return super().__str__()

    def __str__(self) -> str:
        """The message as it may be shown: Python prints it where nobody catches the error."""
        return terminal.plain(self.text)


class ConfigError(FlowError, ValueError):
    """An option, a file or a setting is wrong; nothing was started."""

    exit_code = 2


class SpecError(ConfigError):
    """A value given to the decorator, to `TaskConfig` or in a task file is wrong."""


class BundleError(ConfigError):
    """The function, an argument or a captured variable cannot be sent to a node."""


class ArgumentError(BundleError, TypeError):
    """The arguments do not fit the function's signature; a `TypeError` too, as a plain call would raise."""


class BundleWarning(UserWarning):
    """The call can travel, but not as lightly as it should; names the variable at fault."""


class NotFound(FlowError, LookupError):
    """No task, volume or provider of that name."""

    exit_code = 3


class CapExceeded(FlowError):
    """A price, time or cost cap forbids the launch."""

    exit_code = 4


class ProviderError(FlowError):
    """The provider refused or failed."""

    exit_code = 5


class CapacityUnavailable(ProviderError):
    """Nothing is free now. The supervisor asks again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExceeded(ProviderError):
    """The account may not have so much. Another place of the same region does not help."""


class PermissionRefused(ProviderError):
    """The credentials are missing, wrong, or not allowed to do that; the message names the action."""


class NodeUnreachable(ProviderError):
    """A node does not answer through its connection, or not so that it could be used.

    Attributes:
        host: Name of the host at fault where it is known, which may be one on the way; else "".
        patience: Seconds of the same answer after which waiting does not help: somebody has to change something. None
            where it may be there again at any time.
    """

    def __init__(self, message: str = "", *, host: str = "", patience: float | None = None) -> None:
        super().__init__(message)
        self.host = host
        self.patience = patience


class HostKeyError(NodeUnreachable):
    """A host's key is unknown or has changed. Nothing was sent to it, and waiting does not help.

    Attributes:
        fingerprint: Fingerprint of the key it showed.
        changed: Whether another key was known before.
        revoked: Whether that key was revoked, so that it must not be accepted.
    """

    def __init__(
        self,
        message: str,
        *,
        host: str = "",
        fingerprint: str = "",
        changed: bool = False,
        revoked: bool = False,
    ) -> None:
        super().__init__(message, host=host, patience=0.0)
        self.fingerprint = fingerprint
        self.changed = changed
        self.revoked = revoked

    @property
    def cure(self) -> str:
        """What to do about it, in a few words."""
        if self.revoked:
            return "do not use this host; give it another key if it is yours"
        return f"flow hosts trust {self.host}"


class AnswerTooLong(NodeUnreachable):
    """A node, or a host, says more than any honest answer has; it was given up, since it might never end."""


class StoreError(FlowError):
    """The state database cannot be used."""


class StoreDamaged(StoreError):
    """The file of the state database, or a row of it, is damaged or gone: trying again does not help."""


class LeaseLost(StoreError):
    """Another supervisor has taken this task over; this one must stop at once."""


class RemoteTraceback(Exception):
    """The text of a traceback from a node; set as `__cause__` of a worker's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return terminal.plain(f"\n{self.text.rstrip()}")


class TaskFailed(FlowError):
    """The gang failed.

    Attributes:
        task_id: The task.
        failures: What each failed rank ended with, by global rank. Values are exceptions: the worker's own type where
            it could be rebuilt here, else `RemoteError` or `TaskFailed`.
    """

    def __init__(
        self,
        message: str,
        *,
        task_id: str = "",
        failures: Mapping[int, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.failures: dict[int, BaseException] = dict(failures or {})


class RemoteError(TaskFailed):
    """A worker's exception whose own type could not be rebuilt here.

    Attributes:
        type_name: Qualified name of the type it had on the node.
        remote_traceback: Its traceback there, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback


class TaskCancelled(FlowError):
    """The task was cancelled before it had a result."""


class ResultUnavailable(FlowError):
    """There is no result, or none of that rank."""


class TaskTimeout(FlowError, TimeoutError):
    """Waiting took longer than the caller allowed. The task itself goes on."""
