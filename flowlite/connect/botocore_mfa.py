"""Roles of AWS that want the code of an MFA device (`mfa_serial` of a profile), used by processes without a terminal.

A command asks for the code at its terminal. The session that it is given is kept where the `aws` command keeps those
that it asks for, under the same name and with the same rights, so that neither asks again while it lasts. A supervisor
takes it from there.
"""

from __future__ import annotations

import getpass
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.session import Session

ADVICE = (
    "`aws sts get-caller-identity`, or any `flow` command, asks at a terminal for the code of the MFA device "
    "(mfa_serial), and the session that AWS gives for it is used here, too"
)
"""What to do where no code can be asked for."""


def share_sessions(session: Session) -> None:
    """Has a botocore session keep the sessions of such roles, and take those that were kept."""
    if not any("mfa_serial" in each for each in session.full_config["profiles"].values()):
        return
    for provider in session.get_component("credential_provider").providers:
        if provider.METHOD == "assume-role":
            provider.cache = _cache()
            provider._prompter = _ask_code


def kept_sessions() -> list[Path]:
    """The files of the sessions that are kept."""
    # A user without a home directory has none.
    with suppress(RuntimeError):
        return sorted(_directory().glob("*.json"))
    return []


def _directory() -> Path:
    return Path("~/.aws/cli/cache").expanduser()


def _cache() -> Any:
    from botocore.utils import JSONFileCache

    class Cache(JSONFileCache):  # type: ignore[misc]
        def __contains__(self, key: str) -> bool:
            with suppress(KeyError, TypeError):
                return bool(self[key]["Credentials"]["Expiration"])
            return False

        def __setitem__(self, key: str, value: Any) -> None:
            # Where it cannot be kept, it serves this process.
            with suppress(OSError):
                super().__setitem__(key, value)

    return Cache(str(_directory()))


def _ask_code(prompt: str) -> str:
    from botocore.exceptions import CredentialRetrievalError

    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise CredentialRetrievalError(
            provider="assume-role", error_msg=f"there is no terminal to ask for a code. {ADVICE}"
        ) from None
