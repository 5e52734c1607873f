"""Endpoints and credentials for the buckets of a task, found on this machine in the same places as by AWS tools.

They are written to `storage.json` of the task (0600), and from there to the same file on its nodes, where
`node/s3/client.py` reads them. They are never written to the configuration, the store, a log, a command line or the
environment of a worker. No request is sent to AWS here, except by botocore (or the `aws` command) for profiles that
log in: SSO, roles.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError
from flowlite.node.s3.sigv4 import Credential
from flowlite.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig
    from flowlite.spec.storage import Mount

CHECKPOINT = "checkpoint"
"""Key for the checkpoint's bucket, which is not a path of `mounts`."""

NONE_FOUND = (
    "no credential (none was found where the task was submitted: no AWS_ACCESS_KEY_ID, no profile)"
)
_PROCESS_SECONDS = 60.0
_LOGINS = ("sso_session", "sso_start_url", "role_arn", "web_identity_token_file", "login_session")


@dataclass(frozen=True)
class Account:
    """The values of one profile, or of the environment.

    Attributes:
        source: Where the credential comes from, in words. Never its value.
    """

    credential: Credential | None
    source: str
    endpoint_url: str | None = None
    region: str | None = None


def storage_for(
    config: TaskConfig, environment: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the contents of a task's `storage.json`: one entry for each bucket it uses.

    Raises:
        ConfigError: A profile does not exist, or its credential cannot be obtained.
    """
    wanted = buckets_of(config)
    if not wanted:
        return {}
    aws = Aws(os.environ if environment is None else environment)
    accounts: dict[str | None, Account] = {}
    found = {}
    for use, mount in wanted.items():
        if mount.profile not in accounts:
            accounts[mount.profile] = aws.account(mount.profile)
        account = accounts[mount.profile]
        found[use] = {
            "url": mount.url,
            "endpoint_url": mount.endpoint_url or account.endpoint_url,
            "region": mount.region or account.region,
            "credential": asdict(account.credential) if account.credential else None,
            "source": account.source,
        }
    return found


def buckets_of(config: TaskConfig) -> dict[str, Mount]:
    """Returns every bucket that a task uses, by its use: the path of a mount, or "checkpoint"."""
    from flowlite.spec.storage import Mount

    wanted = dict(config.mounts)
    sync = getattr(config.checkpoint, "sync", None)
    if isinstance(sync, str) and sync.startswith("s3://"):
        wanted[CHECKPOINT] = Mount(sync)
    return wanted


def notes(storage: Mapping[str, Mapping[str, Any]], now: float | None = None) -> list[str]:
    """Returns what the user should know about the credentials before the task is submitted."""
    said: dict[str, None] = {}
    for use, entry in storage.items():
        credential = entry["credential"]
        if credential is None:
            said[
                f"{entry['url']} for {use}: no AWS credential was found here; it is read as the nodes' own role, or "
                "anonymously"
            ] = None
        elif credential["expires"] is not None:
            left = max(0.0, credential["expires"] - (time.time() if now is None else now)) / 3600
            said[
                f"{entry['url']} for {use}: {entry['source']} ends in {left:.1f} hours, and the bucket with it"
            ] = None
    return list(said)


class Aws:
    """The AWS settings on this machine: variables, and the files in ~/.aws."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._credentials_file = self._path("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        self._config_file = self._path("AWS_CONFIG_FILE", "~/.aws/config")
        self._credentials = _sections(self._credentials_file)
        self._config = _sections(self._config_file)

    def account(self, profile: str | None = None) -> Account:
        """Returns credential, endpoint and region of a profile, or of the variables. Raises ConfigError."""
        get = self._environment.get
        named = profile or get("AWS_PROFILE") or get("AWS_DEFAULT_PROFILE")
        name = named or "default"
        settings = self._config.get("default" if name == "default" else f"profile {name}", {})
        kept = self._credentials.get(name, {})
        if named and not settings and not kept and (profile or not get("AWS_ACCESS_KEY_ID")):
            raise ConfigError(
                f"the AWS profile {name!r} is neither in {self._credentials_file} nor in "
                f"{self._config_file}{did_you_mean(name, self._profiles())}"
            )
        found = None if profile else self._from_variables()
        credential, source = found or self._from_profile(name, kept, settings)
        region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or settings.get("region")
        return Account(credential, source, self._endpoint(settings), region)

    def _from_variables(self) -> tuple[Credential, str] | None:
        get = self._environment.get
        key, secret = get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")
        if not key and not secret:
            return None
        if not key or not secret:
            missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
            raise ConfigError(f"{missing} is not set, and its twin is; set both, or neither")
        token = get("AWS_SESSION_TOKEN") or get("AWS_SECURITY_TOKEN") or None
        names = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        with_token = ", with AWS_SESSION_TOKEN" if token else ""
        return Credential(key, secret, token), f"the variables {names}{with_token}"

    def _from_profile(
        self, name: str, kept: Mapping[str, str], settings: Mapping[str, str]
    ) -> tuple[Credential | None, str]:
        both = {**settings, **kept}
        web = "AWS_WEB_IDENTITY_TOKEN_FILE" in self._environment
        if web or any(each in both for each in _LOGINS):
            return self._logged_in(name), f"profile {name!r} of {self._config_file}, logged in"
        for where, file in ((kept, self._credentials_file), (settings, self._config_file)):
            if "aws_access_key_id" in where:
                return _of_section(name, where, file), f"profile {name!r} of {file}"
        if command := both.get("credential_process"):
            credential = self._from_process(shlex.split(command), f"of profile {name!r}")
            return credential, f"profile {name!r} of {self._config_file}, by its credential_process"
        return None, NONE_FOUND

    def _logged_in(self, name: str) -> Credential:
        """Returns the credential of a profile that has to request it from AWS."""
        try:
            import botocore.exceptions
            import botocore.session
        except ImportError:
            command = which("aws")
            if command is None:
                raise ConfigError(
                    f"the AWS profile {name!r} logs in (SSO or a role), which needs botocore or the `aws` command "
                    "here; run `pip install botocore`, or set AWS_ACCESS_KEY_ID and its twins"
                ) from None
            export = [command, "configure", "export-credentials", "--format", "process"]
            return self._from_process([*export, "--profile", name], f"of profile {name!r}")
        try:
            session = botocore.session.Session(profile=None if name == "default" else name)
            held = session.get_credentials()
            frozen = held.get_frozen_credentials() if held is not None else None
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise ConfigError(
                f"the AWS profile {name!r} gives no credential: {error}. Log in again "
                f"(`aws sso login --profile {name}`)"
            ) from error
        if frozen is None:
            raise ConfigError(f"the AWS profile {name!r} gives no credential")
        ends = getattr(held, "_expiry_time", None)
        return Credential(
            frozen.access_key,
            frozen.secret_key,
            frozen.token,
            ends.timestamp() if isinstance(ends, datetime) else None,
        )

    def _from_process(self, command: list[str], what: str) -> Credential:
        environment = dict(self._environment)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=_PROCESS_SECONDS,
                stdin=subprocess.DEVNULL,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"the credential_process {what} cannot be run: {error}") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-300:]
            raise ConfigError(f"the credential_process {what} ended with {done.returncode}: {said}")
        try:
            told = json.loads(done.stdout)
            ends = told.get("Expiration")
            return Credential(
                str(told["AccessKeyId"]),
                str(told["SecretAccessKey"]),
                told.get("SessionToken"),
                datetime.fromisoformat(ends).timestamp() if ends else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            # Neither shown nor chained, since the output may contain the secret.
            raise ConfigError(
                f"the credential_process {what} printed something else than a credential"
            ) from None

    def _endpoint(self, settings: Mapping[str, str]) -> str | None:
        get = self._environment.get
        if get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            return None
        services = self._config.get(f"services {settings.get('services', '')}", {})
        choices = (
            get("AWS_ENDPOINT_URL_S3"),
            get("AWS_ENDPOINT_URL"),
            _nested(services.get("s3", "")).get("endpoint_url"),
            settings.get("endpoint_url"),
        )
        return next((found.rstrip("/") for found in choices if found), None)

    def _profiles(self) -> list[str]:
        named = [name.removeprefix("profile ") for name in self._config if name[:8] == "profile "]
        return [*self._credentials, *named]

    def _path(self, variable: str, default: str) -> str:
        """Returns a path as the user wrote it. `~` is expanded when the file is opened."""
        return self._environment.get(variable) or default


def _of_section(name: str, section: Mapping[str, str], file: str) -> Credential:
    if "aws_secret_access_key" not in section:
        raise ConfigError(f"the AWS profile {name!r} of {file} has no aws_secret_access_key")
    return Credential(
        section["aws_access_key_id"],
        section["aws_secret_access_key"],
        section.get("aws_session_token") or section.get("aws_security_token") or None,
    )


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        text = Path(path).expanduser().read_text("utf-8")
        parser.read_string(text)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except configparser.Error as error:
        # The text of the error may quote a line of the file, so it is not shown.
        where = f", line {number}" if (number := getattr(error, "lineno", None)) else ""
        raise ConfigError(f"{path}{where}: this is no file of AWS settings") from None
    return {
        _plain(name): {key: value.strip() for key, value in parser.items(name) if value is not None}
        for name in parser.sections()
    }


def _plain(section: str) -> str:
    """Returns `profile "two words"` without its quotes."""
    return " ".join(shlex.split(section)) if '"' in section else section


def _nested(text: str) -> dict[str, str]:
    """Returns nested settings, which are lines `name = value`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
