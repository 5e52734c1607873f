"""Volumes on EC2: EBS disks, EFS file systems, FSx for Lustre.

`volumes.py` is what launching uses: which volumes exist and which would be created, what must be ready before the
machines are launched, and what is attached after. `ebs.py` has disks, each in one zone and for one machine at a time;
`efs.py` file systems with a mount target in the zone of the launch; `fsx.py` those that users create themselves.
`common.py` is shared by these. `account_volumes.py` lists the volumes of all regions, since each is charged until it
is deleted, and `efs_usage.py` what a file system has stored since.

What a node does with a volume is `node/attached_volumes`. Imports `aws`, `aws/catalog`, `rented` (durable files),
`provider` and `spec`. Start with `volumes.py`.
"""
