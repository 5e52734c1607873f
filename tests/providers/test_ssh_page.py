"""docs/providers/ssh.md, followed as a reader would with two hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.api.adapters import settings_here
from provider_adapters.ssh.pools import choose_pool
from tests.docs.blocks import Reader, blocks_of, environment_of
from tests.providers.lab import ROOT

if TYPE_CHECKING:
    import pytest

    from flowlite.testing.hosts import Cluster

PAGE = ROOT / "docs" / "providers" / "ssh.md"
NEEDS = "needs two hosts"


def test_the_session_is_what_comes_out(hosts: Cluster, flow_home: Path, tmp_path: Path) -> None:
    directory, tools, home = tmp_path / "page", tmp_path / "tools", tmp_path / "home"
    for each in (directory, tools, home):
        each.mkdir()
    config = home / "ssh_config"
    aliases = [
        f"Host gpu{i + 1}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n"
        for i, host in enumerate(hosts[:2])
    ]
    usual = hosts.ssh_config.read_text()
    common = "".join(
        f"  {line.strip()}\n"
        for line in usual.splitlines()
        if line.strip().startswith(("User", "IdentityFile", "UserKnownHostsFile", "IdentitiesOnly"))
    )
    config.write_text("".join(aliases) + "Host *\n" + common)
    environment = {**environment_of(flow_home, tools), "FLOW_SSH_CONFIG": str(config)}
    environment["PYTHONPATH"] = str(ROOT)
    with hosts.enter_laptop():
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
    [block] = [block for block in blocks_of(PAGE) if block.language == "toml"]
    (tmp_path / "flow.toml").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOW_TRUSTED_DIRS", str(tmp_path))
    pool = choose_pool(settings_here("ssh"))
    assert (pool.name, pool.shared_dir) == ("lab", "/nfs/flowlite")
    assert [host.name for host in pool.hosts] == ["gpu1", "10.0.0.3", "gpu4"]
