"""Encryption of the rendezvous: TLS 1.3 with the one certificate that was made for this attempt. No I/O here.

Both sides know the certificate before they meet, since it came with the rest of what an agent is told. So nothing is
looked up or inherited: a peer that shows any other certificate is not the leader, whoever signed it. Who the peers are
is settled inside, by the secret (see framing.py); TLS only keeps others from reading along.

Importing this module costs an agent some megabytes: only those whose rendezvous is encrypted do it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

if sys.modules.get("ssl", sys) is None:
    # Kept away from asyncio, which would import it for nothing.
    del sys.modules["ssl"]
import ssl

from .framing import WireError

_RECORD = 16 * 1024


class TlsSession:
    """One end of one encrypted connection: bytes of the network go in and come out.

    Attributes:
        open: Whether the handshake is done, and the peer showed the right certificate.
        outgoing: What the handshake wants sent.
    """

    def __init__(self, context: ssl.SSLContext, pinned: bytes | None) -> None:
        """
        Args:
            pinned: The certificate (DER) that the other end must show; None for the end that shows it.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._pinned = pinned
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=pinned is None)
        self.open = False
        self.outgoing = b""
        if pinned is not None:
            self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """What the network brought, in plain. Send `outgoing` after every call.

        Raises:
            WireError: It is no TLS, or the peer is not the one. Close the connection.
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
        finally:
            self.outgoing += self._outgoing.read()
        return b"".join(plain)

    def seal(self, data: bytes) -> bytes:
        """Bytes for the network, once `open`."""
        self._tls.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """`outgoing`, which is the caller's now."""
        taken, self.outgoing = self.outgoing, b""
        return taken

    def _check_peer(self) -> None:
        if self._pinned is not None and self._tls.getpeercert(binary_form=True) != self._pinned:
            raise WireError("what answers at the leader's address shows another certificate")


def server(certificate: Path, key: Path) -> Callable[[], TlsSession]:
    """Makes shields for the leader's end."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    # Nobody resumes a session: a reconnect proves everything again.
    context.num_tickets = 0
    return lambda: TlsSession(context, None)


def client(certificate: Path) -> Callable[[], TlsSession]:
    """Makes shields for the ends that dial."""
    text = certificate.read_text("ascii")
    pinned = ssl.PEM_cert_to_DER_cert(text)
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    # Its name says nothing; it is this very certificate or none.
    context.check_hostname = False
    context.load_verify_locations(cadata=text)
    return lambda: TlsSession(context, pinned)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
