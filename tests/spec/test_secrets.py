"""Secrets: where values come from, and that they go nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.errors import SpecError
from flowlite.spec import Secret, TaskConfig


def test_value_of_a_variable() -> None:
    assert Secret("TOKEN").resolve({"TOKEN": "abc"}) == "abc"
    assert Secret("TOKEN", env="OTHER").resolve({"OTHER": "abc", "TOKEN": "no"}) == "abc"


def test_value_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    assert Secret("TOKEN").resolve() == "abc"


def test_value_of_a_file_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b" a\nb \r\n")
    assert Secret("TOKEN", file=str(path)).resolve({}) == " a\nb "


def test_missing_values_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'TOKEN' has no value: the variable OTHER is not set"):
        Secret("TOKEN", env="OTHER").resolve({})
    with pytest.raises(SpecError, match=r"'TOKEN' cannot be read from .*gone: No such file"):
        Secret("TOKEN", file=str(tmp_path / "gone")).resolve({})


def test_bytes_that_no_variable_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"top\0secret")
    with pytest.raises(SpecError, match="zero byte") as caught:
        Secret("TOKEN", file=str(path)).resolve({})
    assert "top" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        Secret("TOKEN", file=str(path)).resolve({})


def test_one_source_only() -> None:
    with pytest.raises(SpecError, match="either 'env' or 'file', not both"):
        Secret("TOKEN", env="A", file="b")


def test_reserved_names() -> None:
    with pytest.raises(SpecError, match="MASTER_ADDR is made by flowlite"):
        Secret("MASTER_ADDR")


def test_values_are_in_no_text_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    config = TaskConfig(secrets=["TOKEN"])
    assert [secret.resolve() for secret in config.secrets] == ["hunter2"]
    assert "hunter2" not in config.to_json() + repr(config) + str(config)
