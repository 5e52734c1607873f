"""Fixtures for tests that need containers: `podman`, with storage of its own and an image of this machine's files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.components import need
from tests.podman import Podman


@pytest.fixture(scope="session")
def podman_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """podman with its images, made when the first test asks for it."""
    need("podman")
    made = Podman(tmp_path_factory.mktemp("podman") / "p")
    reason = made.prepare()
    if reason:
        made.close()
        pytest.skip(f"podman runs no container here: {reason}")
    yield made
    made.close()


@pytest.fixture
def podman(podman_of_the_session: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """podman as everything that is started finds it; no container is left after the test."""
    for name, value in podman_of_the_session.environment.items():
        monkeypatch.setenv(name, value)
    yield podman_of_the_session
    podman_of_the_session.until_empty()
