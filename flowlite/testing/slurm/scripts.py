"""The scripts that start Slurm's daemons on the hosts. They take no arguments; their files are in place already."""

from __future__ import annotations

from flowlite.testing.slurm.configuration import GPU_DEVICES

# The daemons require that their directories are not writable by others. A new disk belongs to root.
_MUNGE = """\
set -e
for each in /etc/munge /var/lib/munge /var/log/munge /run/munge; do
    mkdir -p $each; chown -R munge: $each; chmod 700 $each
done
chmod 755 /run/munge; chmod 400 /etc/munge/munge.key
setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
"""
_GPUS = "".join(
    f"[ -e {device} ] || mknod -m 666 {device} c 1 {3 + 2 * (index % 2)}\n"
    for index, device in enumerate(GPU_DEVICES)
)
# Bind-mounts the hosts' shared directory at the path it has on the login node.
_SAME_PLACE = "mkdir -p {shared}; mountpoint -q {shared} || mount --bind /mnt/shared {shared}\n"


def node(shared: str) -> str:
    """The script of a node that runs jobs: munge, fake GPUs, slurmd."""
    return f"{_MUNGE}{_GPUS}{_SAME_PLACE.format(shared=shared)}mkdir -p /var/lib/slurm/d\nslurmd\n"


def head(shared: str) -> str:
    """The script of the head. slurmdbd and slurmctld are started later."""
    return f"{_MUNGE}{_SAME_PLACE.format(shared=shared)}mkdir -p /var/lib/slurm/ctld\n"


# Syncing is disabled, since the disk is in memory.
DATABASE = """\
set -e
mkdir -p /run/mysqld /var/lib/accounts; chown mysql /run/mysqld /var/lib/accounts
[ -d /var/lib/accounts/mysql ] || mariadb-install-db --user=mysql --datadir=/var/lib/accounts --skip-test-db \\
    --auth-root-authentication-method=socket --innodb-log-file-size=8M >/var/log/accounts.log 2>&1
setsid mariadbd --user=mysql --datadir=/var/lib/accounts --skip-networking --innodb-buffer-pool-size=32M \\
    --innodb-log-file-size=8M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \\
    --skip-log-bin --performance-schema=off >>/var/log/accounts.log 2>&1 </dev/null &
i=0; until mariadb-admin ping >/dev/null 2>&1; do
    i=$((i+1)); [ $i -lt 600 ] || { tail /var/log/accounts.log >&2; exit 1; }; sleep 0.05
done
slurmdbd
i=0; until sacctmgr -n list cluster >/dev/null 2>&1; do
    i=$((i+1)); [ $i -lt 300 ] || { tail /var/log/slurmdbd.log >&2; exit 1; }; sleep 0.1
done
"""
CONTROLLER = "slurmctld\n"
STOP_CONTROLLER = """\
pid=$(cat /run/slurmctld.pid) || exit 0
kill $pid
i=0; while kill -0 $pid 2>/dev/null; do i=$((i+1)); [ $i -lt 300 ] || kill -9 $pid; sleep 0.05; done
"""
