"""Fixtures for tests of providers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Cluster
    from tests.providers.aws_client import Client
    from tests.providers.mithril_on_paper import Paper
    from tests.providers.slurm_on_paper import Paper as SlurmPaper


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    """A pool of all four hosts, and a FLOW_HOME on the laptop."""
    return Lab(hosts, flow_home)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paper]:
    """A client of the fake Mithril, whose machines exist on paper."""
    pytest.importorskip("httpx")
    from flowlite.testing.cloud.mithril.box import PaperMithril
    from provider_adapters.mithril import bid_submission as submission
    from provider_adapters.mithril import context
    from provider_adapters.mithril.rest import client as api
    from tests.providers.mithril_on_paper import Paper

    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "_FIRST_PAUSE", 0.01)
    # What is asked for before it is listed is there twice: the tests look at that, too.
    monkeypatch.setattr(submission, "_LISTED_SECONDS", 0.0)
    monkeypatch.setattr(context, "_PAUSES", (0.05,))
    monkeypatch.setattr(context, "_STARTING", (0.05,))
    with PaperMithril(auction_seconds=0.05, boot_seconds=0.05, stop_seconds=0.05) as cloud:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        made = Paper(cloud, tmp_path / "home")
        made.configure()
        yield made


@pytest.fixture
def aws(box: CloudInABox, flow_home: Path) -> Iterator[Client]:
    """A user of EC2 in the box, with a FLOW_HOME on the laptop."""
    from tests.providers.aws_client import client_of

    with client_of(box, flow_home) as client:
        yield client


@pytest.fixture
def slurm_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmPaper:
    """A client of a Slurm on paper."""
    from provider_adapters.slurm import job_submission as submission
    from provider_adapters.slurm import listing, nodes
    from provider_adapters.slurm.queries import queue
    from tests.providers.slurm_on_paper import Paper

    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    paper = Paper(tmp_path / "home")
    monkeypatch.setattr(nodes, "meet", paper.meet)
    # Every question is asked, and nothing is waited for.
    for name in ("HURRY", "USUAL", "QUIET"):
        monkeypatch.setattr(queue, name, 0.0)
    monkeypatch.setattr(listing, "HURRY", 0.0)
    monkeypatch.setattr(submission, "_UNDERWAY_SECONDS", 0.0)
    return paper
