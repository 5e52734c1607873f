"""Whether a request is signed with the secret of one of the box's accounts (Signature Version 4)."""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from flowlite.testing.cloud.ec2.names import (
    ACCESS_KEY,
    OTHER_ACCESS_KEY,
    OTHER_SECRET_KEY,
    SECRET_KEY,
)

_FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>(?P<day>\d+)/(?P<region>[^/]+)/(?P<service>[^/]+)"
    r"/aws4_request), ?SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>[0-9a-f]+)"
)
_SECRETS = {ACCESS_KEY: SECRET_KEY, OTHER_ACCESS_KEY: OTHER_SECRET_KEY}
_SKEW = timedelta(minutes=5)
# The error codes of each service for an unknown key, a wrong signature, and an expired request.
_ERRORS = {
    "ec2": ("AuthFailure", "AuthFailure", "RequestExpired"),
    "sts": ("InvalidClientTokenId", "SignatureDoesNotMatch", "RequestExpired"),
    "iam": ("InvalidClientTokenId", "SignatureDoesNotMatch", "RequestExpired"),
}
_ERRORS_OF_OTHERS = (
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "InvalidSignatureException",
)


def fault_of(environ: dict[str, Any], body: bytes) -> str | None:
    """The error code for a request with a bad signature; None for a good one."""
    form = _FORM.match(environ.get("HTTP_AUTHORIZATION", ""))
    if form is None:
        return "MissingAuthenticationToken"
    stranger, forged, late = _ERRORS.get(form["service"], _ERRORS_OF_OTHERS)
    if form["key"] not in _SECRETS:
        return stranger
    moment = environ.get("HTTP_X_AMZ_DATE", "")
    signed = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(datetime.now(UTC) - signed) > _SKEW:
        return late
    text = "\n".join(
        (
            "AWS4-HMAC-SHA256",
            moment,
            form["scope"],
            _hash(_canonical(environ, body, form["headers"])),
        )
    )
    key = _key(_SECRETS[form["key"]], form["scope"])
    expected = hmac.new(key, text.encode(), "sha256").hexdigest()
    return None if hmac.compare_digest(expected, form["signature"]) else forged


@functools.lru_cache
def _key(secret: str, scope: str) -> bytes:
    """The key of a secret for a day, a region and a service."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def is_of_other(environ: dict[str, Any]) -> bool:
    """Whether a request is signed with a key of the other account."""
    form = _FORM.match(environ.get("HTTP_AUTHORIZATION", ""))
    return form is not None and form["key"] == OTHER_ACCESS_KEY


def _canonical(environ: dict[str, Any], body: bytes, names: str) -> bytes:
    path, _, query = environ["REQUEST_URI"].partition("?")
    lines = [environ["REQUEST_METHOD"], quote(path, safe="/~"), "&".join(sorted(query.split("&")))]
    for name in names.split(";"):
        key = name.upper().replace("-", "_")
        value = environ.get(f"HTTP_{key}", environ.get(key, ""))
        lines.append(f"{name}:{' '.join(value.split())}")
    lines += ["", names, environ.get("HTTP_X_AMZ_CONTENT_SHA256") or _hash(body)]
    return "\n".join(lines).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
