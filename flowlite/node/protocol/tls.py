"""Encryption of the rendezvous: TLS 1.3 with the one certificate that was made for this attempt. No I/O here.

Both sides have the certificate before they connect, since it is sent with the agent's configuration. No certificate
authority is involved: a peer that shows any other certificate is not the leader, whoever signed it. The peers
authenticate inside TLS with the secret (`framing.py`); TLS only provides confidentiality.

Importing this module costs several megabytes of memory, so an agent imports it only if its rendezvous is encrypted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

if sys.modules.get("ssl", sys) is None:
    # Removes the None that keeps asyncio from importing ssl needlessly.
    del sys.modules["ssl"]
import ssl

from .framing import WireError

_RECORD = 16 * 1024


class TlsSession:
    """One end of one encrypted connection. It processes bytes and does no I/O.

    Attributes:
        open: Whether the handshake is done and the peer showed the right certificate.
    """

    def __init__(self, context: ssl.SSLContext, pinned: bytes | None) -> None:
        """
        Args:
            pinned: The certificate (DER) that the peer must show; None for the end that shows it.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._pinned = pinned
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=pinned is None)
        self.open = False
        if pinned is not None:
            self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """Decrypts received bytes. Send what `take` returns after every call.

        Raises:
            WireError: The data is not TLS, or the peer shows another certificate. Close the connection.
        """
        self._incoming.write(data)
        plain = []
        try:
            if not self.open:
                self._tls.do_handshake()
                self._check_peer()
                self.open = True
            while block := self._tls.read(_RECORD):
                plain.append(block)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            raise WireError(f"the encryption of the rendezvous failed: {error}") from None
        return b"".join(plain)

    def seal(self, data: bytes) -> bytes:
        """Encrypts data, once the session is `open`."""
        self._tls.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """Returns handshake data to send, once."""
        return self._outgoing.read()

    def _check_peer(self) -> None:
        if self._pinned is not None and self._tls.getpeercert(binary_form=True) != self._pinned:
            raise WireError("what answers at the leader's address shows another certificate")


def server(certificate: Path, key: Path) -> Callable[[], TlsSession]:
    """Returns a factory of TLS sessions for the leader's end."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    # No session is resumed: a reconnect authenticates again.
    context.num_tickets = 0
    return lambda: TlsSession(context, None)


def client(certificate: Path) -> Callable[[], TlsSession]:
    """Returns a factory of TLS sessions for the ends that connect."""
    text = certificate.read_text("ascii")
    pinned = ssl.PEM_cert_to_DER_cert(text)
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    # The host name does not matter: only this exact certificate is accepted.
    context.check_hostname = False
    context.load_verify_locations(cadata=text)
    return lambda: TlsSession(context, pinned)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
