"""The node's own credential: from variables, `~/.aws`, or the role its cloud gives it."""

from __future__ import annotations

import configparser
import json
import os
import urllib.request
from datetime import datetime
from http.client import HTTPException
from pathlib import Path

from .sigv4 import Credential

SECONDS = 2.0
"""A cloud's metadata service answers at once; elsewhere there is no answer."""
_METADATA = "http://169.254.169.254"
_CONTAINER = "http://169.254.170.2"


def node_credential() -> tuple[Credential, str, bool] | None:
    """Returns the node's own credential, its origin in words, and whether it is renewed at intervals.

    Returns None if the node has none.
    """
    found = _variables() or _file()
    if found is not None:
        return (*found, False)
    for way in (_container, _machine):
        try:
            role = way()
        except (OSError, HTTPException, ValueError, LookupError, TypeError):
            continue
        if role is not None:
            return (*role, True)
    return None


def _variables() -> tuple[Credential, str] | None:
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        return None
    token = os.environ.get("AWS_SESSION_TOKEN") or None
    return Credential(key, secret, token), "the variables AWS_ACCESS_KEY_ID, … of the node"


def _file() -> tuple[Credential, str] | None:
    path = Path(os.path.expanduser("~/.aws/credentials"))
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text("utf-8"))
        found = dict(parser.items(os.environ.get("AWS_PROFILE", "default")))
        credential = Credential(
            found["aws_access_key_id"],
            found["aws_secret_access_key"],
            found.get("aws_session_token"),
        )
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
        return None
    return credential, "~/.aws/credentials of the node"


def _container() -> tuple[Credential, str] | None:
    relative = os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") or (
        f"{_CONTAINER}{relative}" if relative else None
    )
    if url is None:
        return None
    file = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = Path(file).read_text() if file else os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    body = _fetch(url, headers={"authorization": token.strip()} if token else {})
    return _of(body), "the role of the node's container"


def _machine() -> tuple[Credential, str] | None:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _METADATA).rstrip("/")
    lifetime = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = _fetch(f"{base}/latest/api/token", "PUT", lifetime).decode()
    sent = {"x-aws-ec2-metadata-token": token}
    roles = f"{base}/latest/meta-data/iam/security-credentials/"
    name = _fetch(roles, headers=sent).decode().split()[0]
    return _of(_fetch(roles + name, headers=sent)), f"the node's own role {name}"


def _of(body: bytes) -> Credential:
    told = json.loads(body)
    ends = told.get("Expiration")
    return Credential(
        str(told["AccessKeyId"]),
        str(told["SecretAccessKey"]),
        told.get("Token"),
        datetime.fromisoformat(ends).timestamp() if ends else None,
    )


def _fetch(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> bytes:
    # Never through a proxy: the address is local to this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=headers or {}, method=method)
    with opener.open(request, timeout=SECONDS) as reply:
        return bytes(reply.read(65536))
