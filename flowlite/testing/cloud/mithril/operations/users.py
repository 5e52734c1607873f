"""The operations on users: the user, projects, API keys, SSH keys."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from flowlite.state import clock
from flowlite.testing.cloud.mithril.errors import business, missing
from flowlite.testing.cloud.mithril.forms import new_fid
from flowlite.testing.cloud.mithril.records import SshKey
from flowlite.testing.cloud.mithril.request import Request
from flowlite.testing.cloud.mithril.world import ORGANIZATION, USER, World

_LONGEST_NAME = 59
_YEAR = 366 * 24 * 3600.0


class People:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_me(self, request: Request) -> tuple[int, Any]:
        """The user of the key."""
        return 200, {
            "id": USER,
            "fid": USER,
            "email": "tester@example.com",
            "user_name": "tester",
            "organization_id": ORGANIZATION,
            "organization_role": "member",
        }

    def get_my_teammates(self, request: Request) -> tuple[int, Any]:
        """Always empty: there are no other users."""
        return 200, []

    def get_projects(self, request: Request) -> tuple[int, Any]:
        """The projects of the user."""
        return 200, [each.model() for each in self._world.projects.values() if each.member]

    def get_api_keys(self, request: Request) -> tuple[int, Any]:
        """All keys, without their secrets."""
        return 200, [each.model() for each in self._world.api_keys.values()]

    def create_api_key(self, request: Request) -> tuple[int, Any]:
        """Creates a key. Only this reply contains its secret."""
        name = request.body["name"]
        expires_at = request.moment("expires_at")
        request.checked()
        if len(name) > _LONGEST_NAME:
            raise business("API key name must be less than 60 characters")
        if not clock.wall() < expires_at <= clock.wall() + _YEAR:
            raise business("API key expiry must be in the future and within one year")
        key = self._world.new_api_key(name, expires_at)
        return 201, {**key.model(), "secret": key.secret}

    def revoke_api_key(self, request: Request) -> tuple[int, Any]:
        """Revokes a key."""
        key = self._world.api_keys.get(request.path["key_fid"])
        if key is None:
            raise missing("API key")
        if key.deactivated_at is None:
            key.deactivated_at = clock.wall()
            key.keep()
        return 204, None

    def get_ssh_keys(self, request: Request) -> tuple[int, Any]:
        """The SSH keys of a project."""
        project = request.query["project"]
        self._world.project_of(project)
        found = [key for key in self._world.ssh_keys.values() if key.project == project]
        return 200, [key.model() for key in found]

    def create_ssh_key(self, request: Request) -> tuple[int, Any]:
        """Adds a given public key, or creates a key pair."""
        project = request.body["project"]
        name = request.body["name"]
        public = request.body.get("public_key")
        required = request.body.get("required") or False
        self._world.project_of(project)
        if any(k.name == name and k.project == project for k in self._world.ssh_keys.values()):
            raise business(f"SSH key name already exists: {name}")
        private = None
        if public is None:
            public, private = _new_pair()
        elif len(public.split()) < 2 or not public.startswith(("ssh-", "ecdsa-", "sk-")):
            raise business("Invalid SSH public key")
        key = SshKey(
            fid=new_fid("sshkey"), name=name, project=project, public_key=public, required=required
        )
        self._world.add(self._world.ssh_keys, key)
        return 201, {**key.model(), "private_key": private}

    def update_ssh_key(self, request: Request) -> tuple[int, Any]:
        """Sets whether every machine of the project accepts the key."""
        key = self._ssh_key(request)
        key.required = request.body["required"]
        key.keep()
        return 200, key.model()

    def delete_ssh_key(self, request: Request) -> tuple[int, Any]:
        """Deletes a key that no live bid uses."""
        key = self._ssh_key(request)
        live = [bid for bid in self._world.bids.values() if bid.status != "Terminated"]
        if any(key.fid in bid.specification["ssh_keys"] for bid in live):
            raise business("SSH key is in use by an active bid")
        del self._world.ssh_keys[key.fid]
        return 204, None

    def _ssh_key(self, request: Request) -> SshKey:
        key = self._world.ssh_keys.get(request.path["ssh_key_fid"])
        if key is None:
            raise missing("SSH key")
        self._world.project_of(key.project)
        return key


def _new_pair() -> tuple[str, str]:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    return public.decode(), text.decode()
