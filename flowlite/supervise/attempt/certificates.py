"""The certificate of a rendezvous that is encrypted: made here, for one attempt of one task, and known to nobody else.

The leader gets the key; every member, and the supervisor, take this very certificate and no other. The key is forgotten
here once the leader has it: a supervisor that takes over needs only the certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from flowlite.supervise.record.paths import TaskPaths, write_private

# Wide enough that no clock is wrong: a node's may be off by years, and the certificate lives for one attempt anyway.
_FROM = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM; the key is None once the leader has it."""

    certificate: bytes
    key: bytes | None


def needed(addresses: Iterable[str]) -> bool:
    """Whether what the nodes say to each other leaves a machine: not if all their addresses are loopbacks."""
    return not all(map(_is_loopback, addresses))


def of_attempt(paths: TaskPaths, attempt: int) -> Certificate:
    """The certificate of an attempt, made at the first call, durable before anybody gets it."""
    try:
        known = paths.certificate(attempt).read_bytes()
    except FileNotFoundError:
        made = make()
        assert made.key is not None
        # The key first: where the certificate is, both are.
        write_private(paths.certificate_key(attempt), made.key)
        write_private(paths.certificate(attempt), made.certificate)
        return made
    try:
        return Certificate(known, paths.certificate_key(attempt).read_bytes())
    except FileNotFoundError:
        return Certificate(known, None)


def forget_key(paths: TaskPaths, attempt: int) -> None:
    """The leader runs, so that nobody here needs the key any more."""
    paths.certificate_key(attempt).unlink(missing_ok=True)


def make() -> Certificate:
    """A fresh one."""
    # Only here: most tasks need none, and this takes memory and time.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "flowlite rendezvous")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
