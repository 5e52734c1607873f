"""AWS Signature Version 4 for S3, as pure functions. Nothing is sent here.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import field

from ..quick_dataclass import dataclass


@dataclass(frozen=True)
class Credential:
    """A credential for a bucket. `expires` is a Unix time, or None if it does not expire."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires: float | None = None


def signed_headers(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credential: Credential,
    region: str,
    now: float,
) -> dict[str, str]:
    """Returns the headers with a signature over method, URL, headers and body.

    Args:
        url: As it will be sent: path and query quoted, the query sorted by name.
        now: Unix time.
    """
    parts = urllib.parse.urlsplit(url)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    content = hashlib.sha256(body).hexdigest()
    sent = {name.lower(): value.strip() for name, value in headers.items()}
    sent["host"] = _host(parts)
    sent["x-amz-date"] = stamp
    sent["x-amz-content-sha256"] = content
    if credential.session_token:
        sent["x-amz-security-token"] = credential.session_token
    names = ";".join(sorted(sent))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            parts.query,
            *(f"{name}:{sent[name]}" for name in sorted(sent)),
            "",
            names,
            content,
        ]
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{credential.secret_key}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return sent


def _host(parts: urllib.parse.SplitResult) -> str:
    default = {"http": 80, "https": 443}.get(parts.scheme)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return name if parts.port in (None, default) else f"{name}:{parts.port}"
