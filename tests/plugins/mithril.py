"""Fixtures with the fake Mithril: `mithril` (on paper, every reply checked) and `vendors_client`."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flowlite.testing.cloud.mithril.box import PaperMithril

VENDORS_CLIENT = "flow-compute==3.28.2"
VENDORS_FIRST_CLIENT = "flow-compute==0.1.0"


@pytest.fixture(scope="session")
def vendors_environment(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """A Python environment with nothing but the vendor's client; or why there is none."""
    return _environment(tmp_path_factory, VENDORS_CLIENT)


@pytest.fixture(scope="session")
def vendors_first_environment(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The same with the first version of that client."""
    return _environment(tmp_path_factory, VENDORS_FIRST_CLIENT)


def _environment(tmp_path_factory: pytest.TempPathFactory, client: str) -> Path | str:
    base = tmp_path_factory.getbasetemp()
    # The workers of a run share one.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    environment = shared / client
    with open(shared / f"{client}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / "done").exists():
            if failure := _install(environment, client):
                return failure
            (environment / "done").touch()
    return environment


def _install(environment: Path, client: str) -> str:
    """Makes the environment, with uv if that can; why it could not be made, "" if it was."""
    links = [f"--find-links={each}" for each in os.environ.get("PIP_FIND_LINKS", "").split()]
    python = str(environment / "bin" / "python")
    uv = [sys.executable, "-m", "uv"]
    ways = [
        [
            [*uv, "venv", "-q", "--clear", "--python", sys.executable, str(environment)],
            [*uv, "pip", "install", "-q", "--python", python, *links, client],
        ],
        [
            [sys.executable, "-m", "venv", "--clear", str(environment)],
            [python, "-m", "pip", "install", "-q", client],
        ],
    ]
    failure = ""
    for commands in ways:
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=90)
        except (subprocess.SubprocessError, OSError) as error:
            failure = str(getattr(error, "stderr", "") or error).strip()[-300:]
        else:
            return ""
    return f"{client} cannot be installed: {failure}"


@pytest.fixture
def vendors_client(vendors_environment: Path | str) -> Path:
    """The directory of the vendor's programs."""
    if isinstance(vendors_environment, str):
        pytest.skip(vendors_environment)
    return vendors_environment / "bin"


@pytest.fixture
def vendors_first_client(vendors_first_environment: Path | str) -> Path:
    """The directory of the programs of the vendor's first client."""
    if isinstance(vendors_first_environment, str):
        pytest.skip(vendors_first_environment)
    return vendors_first_environment / "bin"


@pytest.fixture
def openapi(vendors_environment: Path | str) -> dict[str, Any]:
    """The API's document, from the vendor's client."""
    from tests.testing_cloud.openapi import find_document

    if isinstance(vendors_environment, str):
        pytest.skip(vendors_environment)
    packages = next(vendors_environment.glob("lib/python3*/site-packages"))
    return dict(json.loads(find_document(packages).read_text()))


@pytest.fixture
def mithril() -> Iterator[PaperMithril]:
    """The cloud, quick, on paper. A reply that the document forbids fails the test."""
    from flowlite.testing.cloud.mithril.box import PaperMithril

    with PaperMithril(
        auction_seconds=0.05, boot_seconds=0.1, stop_seconds=0.02, notice_seconds=0.3
    ) as cloud:
        yield cloud
        assert not cloud.service.wrong_replies
