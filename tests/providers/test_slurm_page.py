"""docs/providers/slurm.md, followed as a reader would from a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.api.adapters import settings_here
from provider_adapters.slurm.settings import read_settings
from tests.docs.blocks import Reader, blocks_of, environment_of
from tests.providers.lab import ROOT

if TYPE_CHECKING:
    from flowlite.testing.slurm import SlurmCluster

PAGE = ROOT / "docs" / "providers" / "slurm.md"
NEEDS = "needs a Slurm cluster"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_session_is_what_comes_out(
    slurm: SlurmCluster, flow_home: Path, tmp_path: Path
) -> None:
    """Its home directory is no shared one here, so everything goes to the nodes by itself."""
    directory, tools, home = tmp_path / "page", tmp_path / "tools", tmp_path / "home"
    for each in (directory, tools, home):
        each.mkdir()
    usual = slurm.hosts.ssh_config.read_text()
    config = home / "ssh_config"
    head = slurm.head
    alias = f"Host cluster\n  HostName {head.address}\n  HostKeyAlias {head.name}\n  User flow\n"
    common = "".join(
        f"  {line.strip()}\n"
        for line in usual.splitlines()
        if line.strip().startswith(("IdentityFile", "UserKnownHostsFile", "IdentitiesOnly"))
    )
    config.write_text(f"{alias}Host *\n{common}")
    environment = {**environment_of(flow_home, tools), "FLOW_SSH_CONFIG": str(config)}
    environment["PYTHONPATH"] = str(ROOT)
    with slurm.enter_laptop():
        reader = Reader(directory, environment)
        try:
            for block in blocks_of(PAGE):
                if block.not_run.startswith(NEEDS):
                    reader.follow(type(block)(block.page, block.line, block.language, block.text))
        finally:
            reader.close()


def test_the_configuration_shown_is_right(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [b for b in blocks_of(PAGE) if b.language == "toml" and not b.not_run]
    (tmp_path / "flow.toml").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOW_TRUSTED_DIRS", str(tmp_path))
    found = read_settings(settings_here("slurm"))
    assert found.login == "ada@login.example.org"
    assert (found.lease, found.signal_seconds) == (300.0, 120)
    assert found.options == {"account": "physics", "qos": "normal", "container": "apptainer"}
