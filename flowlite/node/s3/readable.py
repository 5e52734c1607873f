"""Checks with requests of our own whether this node can read a bucket, and explains why not.

Programs that mount buckets report little or nothing of S3's answers.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from .client import S3Error, Store
from .node_credential import node_credential

TRIES, PAUSE = 3, 2.0
"""How often a server that does not answer is asked before the task fails, and the seconds in between."""


def find(store: Store, over: threading.Event) -> tuple[Store, bool]:
    """Returns the store as this node can read it, and whether it is empty.

    The store then has its region, or uses the node's own role.

    Raises:
        S3Error: It cannot be read.
    """
    for left in range(TRIES - 1, -1, -1):
        try:
            return _find(store)
        except S3Error as error:
            if not error.may_pass or not left or over.wait(PAUSE):
                raise
    raise AssertionError


def _find(store: Store) -> tuple[Store, bool]:
    try:
        found = store.located()
    except S3Error as error:
        own = node_credential() if store.credential is None and error.status else None
        if own is None:
            raise
        credential, source, renewed = own
        store = replace(store, credential=credential, source=source)
        found = store.located()
        if renewed:
            empty = _is_empty(found)
            return replace(found, credential=None, own_role=True), empty
    return found, _is_empty(found)


def _is_empty(store: Store) -> bool:
    """Whether a bucket is empty. Raises S3Error if there is nothing below the prefix that was asked for."""
    if next(store.list(store.below, most=1), None) is not None:
        return False
    if not store.prefix:
        return True
    parent, _, name = store.prefix.rpartition("/")
    above = f"s3://{store.bucket}/{parent}".rstrip("/")
    if any(each.key == store.prefix for each in store.list(store.prefix, most=1)):
        raise S3Error(
            f"it is an object, and only what lies below a prefix can be mounted; mount {above}, and read {name} there",
            "NotBelow",
            404,
        )
    others = store.folders(f"{parent}/" if parent else "")
    shown = ", ".join(f"{store.bucket}/{each}" for each in others[:5])
    there = f"{shown}{', …' if len(others) > 5 else ''}" if others else "nothing but objects"
    raise S3Error(f"nothing lies below that prefix; what is there: {there}", "NotBelow", 404)


def explain(path: str, store: Store, error: Exception | None) -> str:
    """Explains why a bucket cannot be read.

    The text says what was requested, where, with which credential, what the answer was, and what to do.
    """
    code = getattr(error, "code", "")
    advice = {
        "InvalidAccessKeyId": "The server does not know this access key; give another credential",
        "SignatureDoesNotMatch": "The secret key does not belong to the access key; correct it",
        "AccessDenied": "This credential may not list it; allow s3:ListBucket and s3:GetObject, or give another",
        "NoSuchBucket": "There is no such bucket at this endpoint; correct the name, or set endpoint_url",
        "ExpiredToken": "The session is over; log in again and submit again",
        "InvalidToken": "The session token is not valid there; log in again and submit again",
        "RequestTimeTooSkewed": "The clock of this node is off; set it",
        "": "Can this node reach it? Look at endpoint_url, AWS_ENDPOINT_URL, and the network of the node",
    }.get(code, "")
    if code and store.credential is None and not store.own_role and code != "NoSuchBucket":
        advice = "It is not open to all; give a credential (AWS_ACCESS_KEY_ID, AWS_PROFILE), or the node a role"
    text = (
        f"{store.url} of {path} cannot be read from here: {str(error).rstrip('.')}. "
        f"Tried: {store.place}, with {store.source}."
    )
    return f"{text} {advice}".rstrip()
