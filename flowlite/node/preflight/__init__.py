"""Checks of a node before GO.

Each node proves that it reaches the others, and not only the leader (connectivity.py): it listens on a port of its
own, and each connection proves the task's secret and carries 64 kB both ways. Up to 16 nodes check all pairs, more of
them the logarithm of their number each. What may be an outage is tried again until the join time-out; a way that was
never open while its node was heard is a firewall (`system/retrying.py`, one rule for all checks). `master_port.py`
chooses and holds MASTER_PORT.
"""
