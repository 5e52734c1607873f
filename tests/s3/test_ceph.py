"""The same against Ceph, which takes S3 to the letter: signatures, refusals, keys, mounts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flowlite.node.s3.client import S3Error, Store
from flowlite.node.s3.sigv4 import Credential
from tests.components import need
from tests.s3.guards import Guard, entry
from tests.s3.servers import S3Server
from tests.s3.test_guard import KEYS, TOOLS

pytestmark = pytest.mark.slow


@pytest.fixture
def server(ceph_server: S3Server) -> S3Server:
    ceph_server.fill("guarded", KEYS)
    return ceph_server


def test_requests_of_our_own(server: S3Server) -> None:
    store = Store.of(entry(server, "s3://guarded/set"))
    assert [each.key for each in store.list()] == sorted(KEYS)
    for key, body in KEYS.items():
        assert b"".join(store.read(key)) == body
    assert store.folders() == ("other/", "set/")
    odd = store.key("put/ a+b%20?=&#ü")
    store.request("PUT", odd, body=b"put")
    got = server.client().get_object(Bucket="guarded", Key=odd)["Body"].read()
    assert got == b"put"
    store.request("DELETE", odd)


@pytest.mark.parametrize(
    ("credential", "code"),
    [
        (None, "AccessDenied"),
        (Credential("nobody", "x"), "InvalidAccessKeyId"),
        (Credential("", "x"), "SignatureDoesNotMatch"),
    ],
)
def test_refusals(server: S3Server, credential: Credential | None, code: str) -> None:
    if credential is not None and not credential.access_key:
        credential = Credential(server.key, "x")
    store = replace(Store.of(entry(server, "s3://guarded")), credential=credential)
    with pytest.raises(S3Error) as caught:
        list(store.list())
    assert (caught.value.code, caught.value.status) == (code, 403)


@pytest.mark.needs("fuse")
@pytest.mark.parametrize("tool", TOOLS)
def test_mounts(server: S3Server, tool: str, tmp_path: Path) -> None:
    need(tool)
    expected = {
        key.removeprefix("set/"): hashlib.sha256(body).hexdigest()
        for key, body in KEYS.items()
        if key.startswith("set/")
    }
    with Guard(tmp_path, {"/data": entry(server, "s3://guarded/set")}, tool=tool) as guard:
        (mount,) = guard.mounted()
        read = (
            "import hashlib, json, os\n"
            f"top = {mount['source']!r}\n"
            "found = [os.path.join(d, f) for d, _, fs in os.walk(top) for f in fs]\n"
            "print(json.dumps({os.path.relpath(p, top): hashlib.sha256(open(p, 'rb').read()).hexdigest() "
            "for p in found}))"
        )
        assert json.loads(guard.within(read)) == expected
        assert guard.end() == 0
        guard.assert_nothing_left()
