"""docs/reaching-nodes.md, followed as a reader would with two hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.blocks import Reader, blocks_of, environment_of
from tests.providers.lab import ROOT, Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

PAGE = ROOT / "docs" / "reaching-nodes.md"


def test_the_session_is_what_comes_out(hosts: Cluster, flow_home: Path, tmp_path: Path) -> None:
    directory, tools = tmp_path / "page", tmp_path / "tools"
    directory.mkdir()
    tools.mkdir()
    pair = hosts[:2]
    lab = Lab(hosts, flow_home, hosts=pair)
    settings = (flow_home / "config.toml").read_text()
    usual = hosts.ssh_config.read_text().partition("Host *\n")[2]
    aliases = "".join(
        f"Host gpu{number}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n"
        for number, host in enumerate(pair, 1)
    )
    config = tmp_path / "ssh_config"
    config.write_text(f"{aliases}Host *\n{usual}")
    for number, host in enumerate(pair, 1):
        settings = settings.replace(host.name, f"gpu{number}")
        host.exec(["hostname", f"gpu{number}"])
    (flow_home / "config.toml").write_text(settings)
    environment = {
        **environment_of(flow_home, tools),
        "PYTHONPATH": str(ROOT),
        "FLOW_SSH_CONFIG": str(config),
    }
    with lab.cluster.enter_laptop():
        reader = Reader(directory, environment)
        try:
            for block in blocks_of(PAGE):
                if block.not_run.startswith("needs two hosts"):
                    reader.follow(replace(block, not_run=""))
        finally:
            reader.close()
