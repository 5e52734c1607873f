"""Volumes of the box's EC2: EBS and EFS.

`block_store.py` replaces moto's calls on EBS volumes; `disks.py` are the volumes behind them, real block devices of
the test hosts, each on one machine at a time. `file_systems.py` gives each mount target of EFS a file server in the
box's network, filtered by its security groups.

Imports `testing/hosts` and the box's state. Start with `block_store.py`.
"""
