"""S3 servers for every room, and an environment in which nobody's own AWS settings count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3.servers import CephServer, RcloneServer, S3Server


@pytest.fixture(scope="session")
def one_s3_server() -> Iterator[S3Server]:
    with RcloneServer() as server:
        yield server


@pytest.fixture(scope="session")
def ceph_server() -> Iterator[S3Server]:
    """The faithful one."""
    with CephServer() as server:
        yield server


@pytest.fixture
def no_aws_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor ~/.aws of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def s3_server(
    one_s3_server: S3Server, no_aws_settings: None, monkeypatch: pytest.MonkeyPatch
) -> S3Server:
    """A server, with the variables set that open it."""
    for name, value in one_s3_server.variables().items():
        monkeypatch.setenv(name, value)
    return one_s3_server
