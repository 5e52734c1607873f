"""Certificates that encrypt the rendezvous. Each is made on this machine, for one attempt of one task.

The leader gets the key. The members and the supervisor accept exactly this certificate. The key is deleted here once
the leader has it: a supervisor that takes over needs only the certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import write_atomically
from flowlite.supervise.record.paths import TaskPaths

# Wide enough for any clock. A node's clock may be off by years, and the certificate is used for one attempt only.
_FROM = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM. The key is None once the leader has it."""

    certificate: bytes
    key: bytes | None


def needed(addresses: Iterable[str]) -> bool:
    """Whether the nodes' traffic leaves a machine, which it does unless all their addresses are loopback."""
    return not all(map(_is_loopback, addresses))


def of_attempt(paths: TaskPaths, attempt: int) -> Certificate:
    """Returns the certificate of an attempt. The first call creates it and makes it durable."""
    try:
        known = paths.certificate(attempt).read_bytes()
    except FileNotFoundError:
        made = make()
        assert made.key is not None
        # The key is written first, so that a certificate always has its key beside it.
        write_atomically(paths.certificate_key(attempt), made.key)
        write_atomically(paths.certificate(attempt), made.certificate)
        return made
    try:
        return Certificate(known, paths.certificate_key(attempt).read_bytes())
    except FileNotFoundError:
        return Certificate(known, None)


def forget_key(paths: TaskPaths, attempt: int) -> None:
    """Deletes the key on this machine, once the leader runs."""
    paths.certificate_key(attempt).unlink(missing_ok=True)


def make() -> Certificate:
    """Creates a certificate and its key."""
    # Imported here because most tasks need no certificate, and the import takes memory and time.
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
