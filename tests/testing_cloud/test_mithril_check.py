"""What `flow providers check` finds at the fake Mithril, when all is well and when something is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Finding
from flowlite.testing.cloud.mithril.box import PaperMithril


@pytest.fixture
def environment(mithril: PaperMithril, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables that lead to the cloud; set."""
    found = mithril.environment()
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def _wrong(home: Path) -> list[Finding]:
    return [each for each in adapter("mithril").check() if not each.ok]


def test_all_is_well(environment: dict[str, str], flow_home: Path, mithril: PaperMithril) -> None:
    found = adapter("mithril").check()
    assert [each for each in found if not each.ok] == []
    assert len(found) > 5
    assert {action[:4] for action, _ in mithril.calls} == {"get_"}


def test_a_key_that_has_expired(
    environment: dict[str, str], flow_home: Path, mithril: PaperMithril
) -> None:
    mithril.expire_key()
    (wrong,) = _wrong(flow_home)
    assert "Invalid credentials" in wrong.detail
    assert "MITHRIL_API_KEY" in wrong.detail
    assert environment["MITHRIL_API_KEY"] not in wrong.detail


def test_a_project_one_is_not_in(
    environment: dict[str, str],
    flow_home: Path,
    mithril: PaperMithril,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MITHRIL_PROJECT", mithril.facts()["foreign_project"])
    (wrong,) = _wrong(flow_home)
    assert wrong.what == "project"
    assert environment["MITHRIL_PROJECT"] in wrong.detail


def test_no_key(
    environment: dict[str, str], flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MITHRIL_API_KEY")
    (wrong,) = _wrong(flow_home)
    assert wrong.what == "API key"
    assert "MITHRIL_API_KEY" in wrong.detail


def test_what_one_may_not_do_is_named(
    environment: dict[str, str], flow_home: Path, mithril: PaperMithril
) -> None:
    mithril.fault("get_ssh_keys", status=403)
    (wrong,) = _wrong(flow_home)
    assert wrong.what == "SSH keys"
    assert "/v2/ssh-keys" in wrong.detail


def test_a_quota_that_is_used_up(
    environment: dict[str, str], flow_home: Path, mithril: PaperMithril
) -> None:
    mithril.quota("*", 0)
    (wrong,) = _wrong(flow_home)
    assert wrong.what == "quota"
