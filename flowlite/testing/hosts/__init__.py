"""Test hosts, made from namespaces of one machine (`docs/testing.md`)."""

from flowlite.testing.hosts.cluster import Cluster, why_not
from flowlite.testing.hosts.host import Host, Laptop

__all__ = ["Cluster", "Host", "Laptop", "why_not"]
