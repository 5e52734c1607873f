"""Hosts to test against, made out of namespaces on one machine (`docs/testing.md`)."""

from flowlite.testing.hosts.cluster import Cluster, why_not
from flowlite.testing.hosts.host import Host, Laptop

__all__ = ["Cluster", "Host", "Laptop", "why_not"]
