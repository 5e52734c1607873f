"""Requests of our own to S3: signed as AWS wants it, refused in S3's words, for any key."""

from __future__ import annotations

import contextlib
import itertools
import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowlite.node.s3 import client
from flowlite.node.s3.client import S3Error, Store, read_storage
from flowlite.node.s3.multipart_upload import MultipartUpload
from flowlite.node.s3.sigv4 import Credential, signed_headers
from tests.s3.guards import entry
from tests.s3.servers import REGION, S3Server


@pytest.fixture
def store(one_s3_server: S3Server) -> Store:
    one_s3_server.fill("requests", {"p/a": b"1", "p/b/c": b"22", "q": b"333"})
    return Store.of(entry(one_s3_server, "s3://requests/p"))


def test_a_signature_of_the_manual() -> None:
    """The example of AWS: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    given = Credential("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    host = "https://examplebucket.s3.amazonaws.com"
    when = 1369353600.0
    cases = [
        (
            "GET",
            f"{host}/test.txt",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "GET",
            f"{host}/?lifecycle=",
            {},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            f"{host}/?max-keys=2&prefix=J",
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ]
    for method, url, headers, signature in cases:
        sent = signed_headers(method, url, headers, b"", given, "us-east-1", when)
        assert sent["authorization"].endswith(f"Signature={signature}"), url
        assert sent["host"] == "examplebucket.s3.amazonaws.com"


def test_listing_and_reading(store: Store) -> None:
    assert [(each.key, each.size) for each in store.list(store.below)] == [("p/a", 1), ("p/b/c", 2)]
    assert [each.key for each in store.list("", most=1)] == ["p/a"]
    assert store.folders() == ("p/",)
    assert b"".join(store.read(store.key("b/c"))) == b"22"
    assert store.located().region == REGION


def test_a_listing_of_several_pages(
    one_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"many/{number:03}" for number in range(25)]
    one_s3_server.fill("pages", dict.fromkeys(names, b""))
    store = Store.of(entry(one_s3_server, "s3://pages"))
    asked: list[dict[str, str]] = []
    whole = Store.request

    def small(
        self: Store, method: str, key: str = "", query: object = None, **rest: object
    ) -> object:
        assert isinstance(query, dict)
        asked.append(query)
        return whole(self, method, key, {**query, "max-keys": "10"}, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "request", small)
    assert [each.key for each in store.list("many/")] == names
    assert len(asked) == 3


def test_the_keys_of_boto_and_ours_are_the_same(one_s3_server: S3Server, store: Store) -> None:
    keys = [
        "a b",
        "a+b",
        "a%20b",
        "ü/漢",
        "q?x=1&y=2#z",
        "(*)!'~$,;:@=",
        'quo"te',
        "tab\tin",
        "a\\b",
    ]
    client = one_s3_server.client()
    for key in keys:
        store.request("PUT", store.key(f"odd/{key}"), body=key.encode())
        got = client.get_object(Bucket="requests", Key=f"p/odd/{key}")["Body"].read()
        assert got.decode() == key
    found = [each.key.removeprefix("p/odd/") for each in store.list("p/odd/")]
    assert sorted(found) == sorted(keys)
    for key in keys:
        assert b"".join(store.read(f"p/odd/{key}")).decode() == key
        store.request("DELETE", f"p/odd/{key}")
    assert list(store.list("p/odd/")) == []


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
)
def test_any_key_is_signed_as_it_is_sent(store: Store, name: str) -> None:
    with pytest.raises(S3Error) as caught:
        store.request("GET", f"not-there/{name}x")
    assert caught.value.code in ("NoSuchKey", "NotFound")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"credential": Credential("nobody", "x")}, "InvalidAccessKeyId"),
        ({"bucket": "requests-not"}, "NoSuchBucket"),
        ({"endpoint_url": "http://127.0.0.1:9"}, ""),
    ],
)
def test_refusals(store: Store, changes: dict[str, object], code: str) -> None:
    with pytest.raises(S3Error) as caught:
        list(replace(store, **changes).list())  # type: ignore[arg-type]
    assert caught.value.code == code
    assert store.credential is not None
    assert store.credential.secret_key not in f"{caught.value!r}{store!r}"


def test_where_a_bucket_of_aws_is() -> None:
    store = Store("s3://b", "b", region="eu-central-1")
    assert store.base() == "https://s3.eu-central-1.amazonaws.com/b"
    assert replace(store, region="cn-north-1").base().endswith("amazonaws.com.cn/b")
    assert replace(store, endpoint_url="http://[::1]:9000").base() == "http://[::1]:9000/b"


def test_storage_json(tmp_path: Path, one_s3_server: S3Server) -> None:
    path = tmp_path / "storage.json"
    assert read_storage(path) == {}
    one = entry(one_s3_server, "s3://one/x/")
    path.write_text(json.dumps({"/data": one, "checkpoint": entry(one_s3_server, "s3://two")}))
    assert Store.open(path, "/data").prefix == "x"
    assert Store.open(path, "checkpoint").bucket == "two"
    with pytest.raises(S3Error, match="says nothing of /other"):
        Store.open(path, "/other")
    path.write_text("{")
    with pytest.raises(S3Error, match="cannot be read"):
        read_storage(path)


@contextlib.contextmanager
def answering(head: bytes, block: bytes, times: int | None) -> Iterator[str]:
    """A server that answers with so many blocks, or without end, and hangs up."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
                for _ in itertools.count() if times is None else range(times):
                    self.wfile.write(block)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("", ["a%20b", "a+b/"]),
        ("<EncodingType>url</EncodingType>", ["a b", "a b/"]),
    ],
)
def test_names_are_decoded_only_where_the_server_has_encoded_them(
    said: str, names: list[str]
) -> None:
    found = "<Contents><Key>a%20b</Key></Contents><CommonPrefixes><Prefix>a+b/</Prefix></CommonPrefixes>"
    body = f"<ListBucketResult>{said}{found}</ListBucketResult>".encode()
    with answering(b"Connection: close", body, 1) as url:
        store = Store("s3://b", "b", endpoint_url=url, credential=Credential("a", "s"))
        assert [*(each.key for each in store.list()), *store.folders()] == names


def test_a_server_that_sends_more_than_was_asked_for_is_asked_no_further() -> None:
    found = "".join(f"<CommonPrefixes><Prefix>{n}/</Prefix></CommonPrefixes>" for n in range(1001))
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    body = f"<ListBucketResult>{found}{more}</ListBucketResult>".encode()
    with answering(b"Connection: close", body, 1) as url:
        store = Store("s3://b", "b", endpoint_url=url, credential=Credential("a", "s"))
        assert len(store.folders()) == 1001


BLOCK = bytes(1 << 16)
NEVER = (None, "more than 1 MiB")


@pytest.mark.parametrize(
    ("head", "block", "times", "said"),
    [
        (b"Connection: close", BLOCK, *NEVER),
        (b"Content-Length: 1000000000000", BLOCK, *NEVER),
        (b"Transfer-Encoding: chunked", b"10000\r\n" + BLOCK + b"\r\n", *NEVER),
        (b"Content-Length: 100000", BLOCK, 1, "does not answer as S3"),
        (b"Transfer-Encoding: chunked", b"10000\r\n" + BLOCK + b"\r\n", 1, "does not answer as S3"),
    ],
)
def test_an_answer_without_end_or_without_its_end(
    head: bytes, block: bytes, times: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_ANSWER", 1 << 20)
    with answering(head, block, times) as url:
        store = Store("s3://b", "b", endpoint_url=url, credential=Credential("a", "s"))
        with pytest.raises(S3Error, match=said):
            store.request("GET", "", {"list-type": "2"})


def test_a_list_of_parts_without_numbers_is_no_answer_of_s3() -> None:
    def request(*_: object) -> client.Response:
        part = "<Part><PartNumber>9x</PartNumber><ETag>t</ETag></Part>"
        return client.Response(200, {}, f"<ListPartsResult>{part}</ListPartsResult>".encode())

    with pytest.raises(S3Error, match="no S3 server"):
        MultipartUpload(request, "key", "id").sent()
