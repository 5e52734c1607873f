"""All errors that flowlite raises, as one tree.

    FlowError                       exit code  what it is about
    ├── ConfigError (ValueError)        2      an option, a file or a setting is wrong; nothing was started
    │   ├── SpecError                   2      a value of the decorator, of TaskConfig or of a task file
    │   └── BundleError                 2      the function, an argument or a captured variable cannot be sent
    │       └── ArgumentError (TypeError)
    │                                   2      the arguments do not fit the function's signature
    ├── NotFound (LookupError)          3      no task, volume or provider of that name
    ├── CapExceeded                     4      a price, time or cost cap forbids the launch
    ├── ProviderError                   5      the provider refused or failed
    │   ├── CapacityUnavailable         5      nothing free now; asking again later may work
    │   ├── QuotaExceeded               5      the account's quota is too low; the message names the quota
    │   ├── PermissionRefused           5      credentials are missing, wrong, or lack a permission
    │   └── NodeUnreachable             5      a node does not answer
    │       ├── HostKeyError            5      a host's key is unknown, or not the one it had before
    │       └── AnswerTooLong           5      a node sends more than can be kept here
    ├── StoreError                      1      the state database cannot be used
    │   ├── StoreDamaged                1      its file, or a row of it, is damaged or gone
    │   └── LeaseLost                   1      another supervisor has taken this task over
    ├── TaskFailed                      1      the gang failed; `.failures` says which ranks, and how
    │   └── RemoteError                 1      a worker's exception whose own type cannot be rebuilt here
    ├── TaskCancelled                   1      the task was cancelled
    ├── ResultUnavailable               1      there is no result (yet, or of that rank)
    └── TaskTimeout (TimeoutError)      1      waiting took longer than the caller allowed; the task continues

Each message says what happened, where, and what to do next. A worker's own exception is raised as its own type, with
`RemoteTraceback` as its cause. `BundleWarning` is the only warning class.
"""

from __future__ import annotations

from flowlite import terminal


class FlowError(Exception):
    """Base class of all flowlite errors. `exit_code` is the exit code of the `flow` command for this error."""

    exit_code = 1

    @property
    def text(self) -> str:
        """The raw message. It may contain unescaped text from a node."""
        return super().__str__()

    def __str__(self) -> str:
        """The message with control characters replaced, since Python prints it if the error is not caught."""
        return terminal.plain(self.text)


class ConfigError(FlowError, ValueError):
    """An option, a file or a setting is wrong; nothing was started."""

    exit_code = 2


class SpecError(ConfigError):
    """A value given to the decorator, to `TaskConfig` or in a task file is wrong."""


class BundleError(ConfigError):
    """The function, an argument or a captured variable cannot be sent to a node."""


class ArgumentError(BundleError, TypeError):
    """The arguments do not fit the function's signature. Also a `TypeError`, which is what a plain call raises."""


class BundleWarning(UserWarning):
    """The call can be sent to a node, but is larger or slower than it should be. Names the variable at fault."""


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
    """The provider has no free capacity now. The supervisor asks again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExceeded(ProviderError):
    """The account's quota is too low. Another zone of the same region does not help."""


class PermissionRefused(ProviderError):
    """The credentials are missing, wrong, or lack a permission; the message names the action."""


class NodeUnreachable(ProviderError):
    """A node does not answer through its connection, or its answer cannot be used.

    Attributes:
        host: Name of the host at fault if it is known (it may be a jump host); else "".
        patience: Seconds of the same answer after which waiting is pointless, since the problem needs a user to fix it.
            None if the node may answer again at any time.
    """

    def __init__(self, message: str = "", *, host: str = "", patience: float | None = None) -> None:
        super().__init__(message)
        self.host = host
        self.patience = patience


class HostKeyError(NodeUnreachable):
    """A host's key is unknown or has changed. Nothing was sent to it, and waiting does not help.

    Attributes:
        fingerprint: Fingerprint of the key that the host presented.
        changed: Whether another key was known for the host.
        revoked: Whether the presented key was revoked, so that it must not be accepted.
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
        """What the user can do about it, in a few words."""
        if self.revoked:
            return "do not use this host; give it another key if it is yours"
        return f"flow hosts trust {self.host}"


class AnswerTooLong(NodeUnreachable):
    """A node or host sent more than any valid answer has. Reading was stopped, since the answer might never end."""


class StoreError(FlowError):
    """The state database cannot be used."""


class StoreDamaged(StoreError):
    """The file of the state database, or a row of it, is damaged or gone. Retrying does not help."""


class LeaseLost(StoreError):
    """Another supervisor has taken this task over; this one must stop at once."""


class RemoteTraceback(Exception):
    """The text of a traceback from a node. Set as the `__cause__` of a worker's exception.

    Attributes:
        text: The whole traceback.
        seen: Where this program has shown it already, as a sentence; "" if it has not. `str()` is that sentence then,
            so that a program that ends with the exception does not print the same traceback twice.
    """

    def __init__(self, text: str, *, seen: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.seen = seen

    def __str__(self) -> str:
        if self.seen:
            return terminal.in_one_line(self.seen)
        return terminal.plain(f"\n{self.text.rstrip()}")


class TaskFailed(FlowError):
    """The gang failed.

    Attributes:
        task_id: The task.
        failures: The exception of each failed rank, by global rank: of the worker's own type if that could be rebuilt
            here, else `RemoteError` or `TaskFailed`.
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        self.failures: dict[int, BaseException] = {}


class RemoteError(TaskFailed):
    """A worker's exception whose own type could not be rebuilt here.

    Attributes:
        type_name: Qualified name of the exception's type on the node.
        remote_traceback: The traceback from the node, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback


class TaskCancelled(FlowError):
    """The task was cancelled before it had a result."""


class ResultUnavailable(FlowError):
    """There is no result, or none for that rank."""


class TaskTimeout(FlowError, TimeoutError):
    """Waiting took longer than the caller allowed. The task itself continues."""
