"""Keys for rented machines: the client's login key, and the host key for a machine's first contact."""

from __future__ import annotations

from pathlib import Path

from flowlite.errors import ProviderError
from flowlite.node.quick_dataclass import dataclass
from provider_adapters.durable import create_durably, make_directory

_NAME = "id_ed25519"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 key pair.

    Attributes:
        private: In OpenSSH's format, with a final newline.
        public: `ssh-ed25519 AAAA…`, without a comment.
    """

    private: str
    public: str


def new_key() -> KeyPair:
    """A new key pair. As a host key it is put into the user data, one per launch, and is replaced at first contact."""
    # Slow to import, and only needed at a launch.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(private.decode(), public.decode())


def client_key(home: Path) -> Path:
    """The private key for logins: FLOW_HOME/keys/id_ed25519 (0600), created on first use, with `.pub` beside it.

    Raises:
        ProviderError: The key cannot be written, or others can read it.
    """
    path = home / "keys" / _NAME
    try:
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode
    except OSError as error:
        raise ProviderError(f"{path} cannot be written: {error.strerror or error}") from error
    if mode & 0o077:
        raise ProviderError(
            f"{path} opens every machine you rent, and others may read it (mode {mode & 0o777:o}): `chmod 600 {path}`, "
            "or move it away, and a new one is made"
        )
    return path


def client_public(home: Path) -> str:
    """The public key `ssh-ed25519 AAAA… flowlite`, for the machine's authorized_keys."""
    from cryptography.hazmat.primitives import serialization

    path = client_key(home)
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ProviderError(
            f"{path} is not a private key without a passphrase ({error}); move it away, and a new one is made"
        ) from error
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return f"{public.decode()} flowlite"


def _make(path: Path) -> None:
    """Creates the key. If several processes do so at once, one of them wins and all use its key."""
    make_directory(path.parent)
    pair = new_key()
    if create_durably(path, pair.private):
        path.with_name(f"{_NAME}.pub").write_text(f"{pair.public} flowlite\n")
