"""boto3 clients, configured by profiles, regions, proxies and endpoints as usual; boto3 is imported on first use."""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import threading
from pathlib import Path
from typing import Any

from flowlite.connect import botocore_mfa, bounded_botocore
from flowlite.errors import ConfigError
from provider_adapters.aws.errors import CredentialsRefused, refusal
from provider_adapters.aws.settings import KEY_VARIABLE, AwsSettings

_log = logging.getLogger("flowlite.aws")
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_ONCE_SECONDS = 60.0
_TRIES = 5


class Clients:
    """Clients of AWS's services, one for each service and region. Used by several threads.

    boto3 reads the files of profiles once. A supervisor may outlive what it has read: a session of some hours, which
    the user's tools renew in the file. So if AWS refuses the credentials, and a file has changed, it is read again.
    """

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._session: Any = None
        # The files as they were when the session was made.
        self._files: object = None
        self._clients: dict[tuple[str, str, bool], Any] = {}

    def __call__(self, service: str, region: str, *, once: bool = False) -> Any:
        """A client. With `once`, each call is sent only once, without retries.

        Raises:
            ConfigError: boto3 is not installed, or the profile does not exist.
            CredentialsRefused: There are no credentials.
        """
        key = (service, region, once)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._make(service, region, once)
            return self._clients[key]

    @property
    def session(self) -> Any:
        """The boto3 session. Raises ConfigError."""
        with self._lock:
            if self._session is None:
                self._files = _stamps(self._settings)
                self._session = _make_session(self._settings)
            return self._session

    @property
    def region(self) -> str:
        """The region that boto3 would use, or ""."""
        return str(self.session.region_name or "")

    @property
    def may_be_renewed(self) -> bool:
        """Whether the credentials are of a profile, which may give others later, and not of variables."""
        return _are_of_profile(self._settings)

    def endpoint(self, service: str, region: str) -> str:
        """The URL of a service."""
        return str(self(service, region).meta.endpoint_url)

    def partition(self, region: str) -> str:
        """The AWS partition of a region, such as "aws" or "aws-cn"; "aws" for a region that botocore does not know."""
        from botocore.exceptions import UnknownRegionError

        try:
            return str(self.session.get_partition_for_region(region))
        except UnknownRegionError:
            return "aws"

    def _make(self, service: str, region: str, once: bool) -> Any:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_ONCE_SECONDS if once else _READ_SECONDS,
            max_pool_connections=16,
            retries={"mode": "standard", "total_max_attempts": 1 if once else _TRIES},
        )
        try:
            if self.session.get_credentials() is None:
                raise CredentialsRefused(
                    "there are no credentials for AWS: set AWS_PROFILE or [aws] profile, log in (`aws sso login`), or "
                    f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY{self._settings.lacking}"
                )
            client = self.session.client(
                service,
                region_name=region,
                endpoint_url=self._settings.endpoint_url or None,
                config=config,
            )
        except BotoCoreError as error:
            raise CredentialsRefused(f"the credentials for AWS cannot be used: {error}") from error
        _tell_calls(client, service, region)
        self._repeat_with_renewed(client, (service, region, once))
        return client

    def _repeat_with_renewed(self, client: Any, key: tuple[str, str, bool]) -> None:
        """Has a client repeat each call for which its credentials were refused, if there are others now."""
        send = client._make_api_call

        def call(operation: str, parameters: Any) -> Any:
            try:
                # botocore changes them: it encodes user data.
                return send(operation, copy.deepcopy(parameters))
            except Exception as error:
                said = refusal(error, "")
                if said is None or said.kind != "credentials" or not self._are_renewed(client, key):
                    raise
            # AWS looks at the credentials first, so that nothing was done.
            service, region, once = key
            return self(service, region, once=once)._make_api_call(operation, parameters)

        client._make_api_call = call

    def _are_renewed(self, client: Any, key: tuple[str, str, bool]) -> bool:
        """Whether there may be other credentials than those of a client."""
        with self._lock:
            if self._clients.get(key) is not client:
                return True
            if _stamps(self._settings) == self._files:
                return False
            self._session = None
            self._clients.clear()
            return True


def _tell_calls(client: Any, service: str, region: str) -> None:
    """Logs every call that is answered or fails, for `flow --debug`."""

    def answered(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        told = parsed.get("ResponseMetadata", {}).get("RequestId", "")
        code = parsed.get("Error", {}).get("Code", "")
        status = f"{http_response.status_code} {code}".rstrip()
        _log.debug("%s %s in %s: %s (%s)", service, model.name, region, status, told)

    def failed(exception: BaseException, **_: Any) -> None:
        _log.debug("%s in %s: %s", service, region, type(exception).__name__)

    client.meta.events.register("after-call", answered)
    client.meta.events.register("after-call-error", failed)


def _make_session(settings: AwsSettings) -> Any:
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError("the provider aws needs boto3: pip install boto3")
    import boto3
    from botocore.exceptions import BotoCoreError

    # Profile and files of the submitting user are in the settings; this process's variables do not count.
    config, credentials = _files_of(settings)
    read: dict[str, tuple[None, None, str | None, None]] = {
        "config_file": (None, None, config, None),
        "credentials_file": (None, None, credentials, None),
    }
    if _are_of_profile(settings):
        read["profile"] = (None, None, None, None)
    try:
        own = bounded_botocore.session(session_vars=read)
        return boto3.session.Session(botocore_session=own, profile_name=settings.profile or None)
    except BotoCoreError as error:
        raise ConfigError(f"[aws] profile, or AWS_PROFILE: {error}") from error


def _are_of_profile(settings: AwsSettings) -> bool:
    return bool(settings.profile) or not os.environ.get(KEY_VARIABLE)


def _files_of(settings: AwsSettings) -> tuple[str, str]:
    """The files of profiles, and of their credentials."""
    return (
        settings.shared_config_file or "~/.aws/config",
        settings.shared_credentials_file or "~/.aws/credentials",
    )


def _stamps(settings: AwsSettings) -> list[tuple[int, int, int] | None]:
    """What changes with the content of these files, and of the sessions that are kept."""
    found: list[tuple[int, int, int] | None] = []
    for name in (*_files_of(settings), *map(str, botocore_mfa.kept_sessions())):
        try:
            about = Path(name).expanduser().stat()
            found.append((about.st_mtime_ns, about.st_size, about.st_ino))
        except (OSError, RuntimeError):
            found.append(None)
    return found
