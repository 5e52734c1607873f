"""Endpoints and credentials for the buckets of a task, found on this machine by botocore, as by AWS tools.

They are written to `storage.json` of the task (0600), and from there to the same file on its nodes, where
`node/s3/client.py` reads them. They are never written to the configuration, the store, a log, a command line or the
environment of a worker. No request is sent to AWS here, except by botocore for profiles that log in: SSO, roles.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from flowlite.node.s3.sigv4 import Credential
    from flowlite.spec import TaskConfig
    from flowlite.spec.storage import Mount

CHECKPOINT = "checkpoint"
"""Key for the checkpoint's bucket, which is not a path of `mounts`."""

NONE_FOUND = (
    "no credential (none was found where the task was submitted: no AWS_ACCESS_KEY_ID, no profile)"
)
# The rights of the machine or container where a task is submitted are not lent to its nodes, which have their own.
_OF_THIS_MACHINE = ("container-role", "iam-role", "ec2-credentials-file", "boto-config")


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


def storage_for(config: TaskConfig) -> dict[str, dict[str, Any]]:
    """Returns the contents of a task's `storage.json`: one entry for each bucket it uses. Raises ConfigError."""
    wanted = buckets_of(config)
    if not wanted:
        return {}
    accounts: dict[str | None, Account] = {}
    found = {}
    for use, mount in wanted.items():
        if mount.profile not in accounts:
            accounts[mount.profile] = account_of(mount.profile)
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


def notes(storage: Mapping[str, Mapping[str, Any]]) -> list[str]:
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
            left = max(0.0, credential["expires"] - time.time()) / 3600
            said[
                f"{entry['url']} for {use}: {entry['source']} ends in {left:.1f} hours, and the bucket with it"
            ] = None
    return list(said)


def account_of(profile: str | None = None) -> Account:
    """Returns credential, endpoint and region of a profile, or of the variables. Raises ConfigError."""
    import botocore.exceptions

    # Imported here, since most tasks that are submitted use no bucket.
    from flowlite.connect import bounded_botocore
    from flowlite.node.s3.sigv4 import Credential

    session = bounded_botocore.session(profile=profile)
    name = session.get_config_variable("profile") or "default"
    try:
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
        endpoint_url = _endpoint(session)
        resolver = session.get_component("credential_provider")
        for each in _OF_THIS_MACHINE:
            resolver.remove(each)
        held = session.get_credentials()
        frozen = held.get_frozen_credentials() if held is not None else None
    except botocore.exceptions.ProfileNotFound:
        nearest = did_you_mean(name, session.available_profiles)
        credentials, config = map(session.get_config_variable, ("credentials_file", "config_file"))
        raise ConfigError(
            f"the AWS profile {name!r} is neither in {credentials} nor in {config}{nearest}"
        ) from None
    except botocore.exceptions.PartialCredentialsError as error:
        raise ConfigError(f"{error}; set both, or neither") from None
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        # Not chained, since the cause may quote a line of a file.
        raise ConfigError(
            f"the AWS profile {name!r} gives no credential: {error}. If it logs in, log in again "
            f"(`aws sso login --profile {name}`)"
        ) from None
    except (ValueError, TypeError, AttributeError):
        # Neither shown nor chained, since the output may contain the secret.
        raise ConfigError(
            f"the credential_process of the AWS profile {name!r} printed something else than a credential"
        ) from None
    if frozen is None:
        return Account(None, NONE_FOUND, endpoint_url, region)
    ends = getattr(held, "_expiry_time", None)
    credential = Credential(
        frozen.access_key,
        frozen.secret_key,
        frozen.token or None,
        ends.timestamp() if isinstance(ends, datetime) else None,
    )
    source = _source(session, name, held.method, bool(frozen.token))
    return Account(credential, source, endpoint_url, region)


def _source(session: Any, name: str, method: str, has_token: bool) -> str:
    """Says where botocore found a credential."""
    if method == "env":
        with_token = ", with AWS_SESSION_TOKEN" if has_token else ""
        return f"the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY{with_token}"
    in_credentials = method == "shared-credentials-file"
    file = session.get_config_variable("credentials_file" if in_credentials else "config_file")
    how = {
        "shared-credentials-file": "",
        "config-file": "",
        "custom-process": ", by its credential_process",
    }.get(method, ", logged in")
    return f"profile {name!r} of {file}{how}"


def _endpoint(session: Any) -> str | None:
    """Returns the endpoint of S3 that variables or the profile set, in the order of the AWS tools."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    settings = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(settings.get("services"), {})
    choices = (
        os.environ.get("AWS_ENDPOINT_URL_S3"),
        os.environ.get("AWS_ENDPOINT_URL"),
        services.get("s3", {}).get("endpoint_url"),
        settings.get("endpoint_url"),
    )
    return next((found.rstrip("/") for found in choices if found), None)
