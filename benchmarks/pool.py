"""Hosts on this machine as a pool of the SSH provider: each with a network, a disk and an sshd of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import fresh_home
from flowlite.testing.hosts import Cluster

POOL = "bench"


@contextmanager
def pool(hosts: int) -> Iterator[Cluster]:
    """Hosts that are up, a FLOW_HOME whose one pool they are; this thread is on the laptop meanwhile."""
    with Cluster(hosts) as cluster, fresh_home() as home, cluster.enter_laptop():
        names = [host.name for host in cluster]
        configure(home, names, cluster.ssh_config, cluster[0].python)
        yield cluster


def configure(home: Path, hosts: Sequence[str], config_file: Path, interpreter: str) -> None:
    """Writes the pool into the settings of a FLOW_HOME."""
    names = ", ".join(f'"{host}"' for host in hosts)
    (home / "config.toml").write_text(
        f'provider = "ssh"\n\n[ssh]\nconfig_file = "{config_file}"\n\n'
        f'[ssh.pools.{POOL}]\nhosts = [{names}]\npython = "{interpreter}"\n'
    )
