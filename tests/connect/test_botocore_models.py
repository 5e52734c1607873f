"""The models of AWS's services, read once for all sessions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("botocore")

from botocore.exceptions import UnknownServiceError
from botocore.loaders import JSONFileLoader

from flowlite.connect import bounded_botocore

KEYS = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


def test_sessions_share_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = JSONFileLoader.load_file

    def noted(loader: JSONFileLoader, path: str) -> object:
        found = load(loader, path)
        read.extend([path] if found is not None else [])
        return found

    bounded_botocore.session().create_client("ssm", **KEYS)
    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    bounded_botocore.session().create_client("ssm", **KEYS)
    assert read == []


def test_an_unknown_service_is_called_one() -> None:
    with pytest.raises(UnknownServiceError, match="nonesuch"):
        bounded_botocore.session().create_client("nonesuch", **KEYS)


def test_models_of_the_users_own_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As AWS_DATA_PATH names them, which only some sessions of a process may have."""
    model = {"version": "2.0", "metadata": {"apiVersion": "2024-01-01", "endpointPrefix": "mine"}}
    there = tmp_path / "mine" / "2024-01-01"
    there.mkdir(parents=True)
    (there / "service-2.json.gz").write_bytes(gzip.compress(json.dumps(model).encode()))
    before = bounded_botocore.session()
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    found = bounded_botocore.session().get_service_model("mine")
    assert found.api_version == "2024-01-01"
    monkeypatch.delenv("AWS_DATA_PATH")
    with pytest.raises(UnknownServiceError, match="mine"):
        before.get_service_model("mine")
