"""Test hosts, made from namespaces of one machine (`docs/testing.md`).

A host has processes, a disk, a network and an sshd of its own, and can lose its power, its network or its clock
without harm to the machine. `cluster.py` is what a test enters; it sends requests to the room (`room.py`), a process
that holds everything and with whose end everything ends. `machine.py` is one host, `root.py` its file system,
`network.py` the switch with its cables, `clock.py`, `disks.py`, `cards.py`, `cgroups.py`, `shares.py` and
`file_server.py` what a host may have. `slot.py` is a host that is rented out, each time as a new machine. `probes.py`
looks from outside what is left.

Needs Linux and root. Start with `cluster.py`.
"""

from flowlite.testing.hosts.cluster import Cluster, why_not
from flowlite.testing.hosts.host import Host, Laptop

__all__ = ["Cluster", "Host", "Laptop", "why_not"]
