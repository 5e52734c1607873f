"""The configuration files of the Slurm on test hosts, as pure functions.

Timeouts are short where tests wait for them, and those of a large cluster where a busy machine could exceed them.
"""

from __future__ import annotations

from collections.abc import Sequence

CLUSTER = "flow"
ACCOUNT = "research"
# Preemption: `high` takes nodes from the others. `brief` gets a warning of GRACE_SECONDS, `normal` gets none.
QOS_HIGH, QOS_NORMAL, QOS_BRIEF, QOS_ONE_GPU = "high", "normal", "brief", "onegpu"
GRACE_SECONDS = 10
PARTITION, SHORT_PARTITION = "main", "short"
GPUS, CPUS, MEMORY = 2, 8, 16000
GPU_DEVICES = tuple(f"/dev/fakegpu{index}" for index in range(GPUS))
DATABASE = "slurm_acct_db"

# Clusters mostly have a default for MPI, and each step has its variables.
_SLURM = """\
ClusterName={cluster}
SlurmctldHost={head}({head_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=30{socket}
StateSaveLocation=/var/lib/slurm/ctld
SlurmdSpoolDir=/var/lib/slurm/d
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
DebugFlags=NO_CONF_HASH
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/multifactor
PriorityWeightQOS=1000
PreemptType=preempt/qos
PreemptMode=REQUEUE
MpiDefault=pmi2
ReturnToService=2
SlurmdTimeout=12
SlurmctldTimeout=12
MessageTimeout=10
KillWait=4
MinJobAge={min_job_age}
WaitTime=0
InactiveLimit=0
JobRequeue=1
UnkillableStepTimeout=30
SlurmdParameters=config_overrides
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={head_address}
{password}AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
DefMemPerCPU=1000
MaxArraySize=1001
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName={short} Nodes=ALL MaxTime=10 State=UP
"""
_NODE = (
    "NodeName={name} NodeAddr={address} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} "
    "ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gpus} Feature=fake,gpu State=UNKNOWN"
)
_SLURMDBD = """\
AuthType=auth/munge
DbdHost={head}
DbdAddr={head_address}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={database}
LogFile=/var/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""


def slurm_conf(
    head: tuple[str, str],
    nodes: Sequence[tuple[str, str]],
    *,
    munge_socket: str = "",
    min_job_age: int = 300,
) -> str:
    """slurm.conf for a head and nodes, each a (name, address). `munge_socket` is set where munge has another socket."""
    lines = [
        _NODE.format(name=name, address=address, cpus=CPUS, memory=MEMORY, gpus=GPUS)
        for name, address in nodes
    ]
    return _SLURM.format(
        cluster=CLUSTER,
        head=head[0],
        head_address=head[1],
        socket=f",socket={munge_socket}" if munge_socket else "",
        password=f"AccountingStoragePass={munge_socket}\n" if munge_socket else "",
        min_job_age=min_job_age,
        nodes="\n".join(lines),
        partition=PARTITION,
        short=SHORT_PARTITION,
    )


def companions() -> dict[str, str]:
    """The other files in /etc/slurm on every host."""
    return {
        "gres.conf": f"Name=gpu File=/dev/fakegpu[0-{GPUS - 1}]\n",
        # If detected automatically, the plugin would end slurmd, since the hosts have no version 2 controllers mounted.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "plugstack.conf": "",
    }


def slurmdbd_conf(head: tuple[str, str]) -> str:
    """slurmdbd.conf."""
    return _SLURMDBD.format(head=head[0], head_address=head[1], database=DATABASE)


def accounts(users: Sequence[str]) -> list[list[str]]:
    """The arguments of `sacctmgr -i`, in order."""
    every = ",".join((QOS_NORMAL, QOS_HIGH, QOS_BRIEF, QOS_ONE_GPU))
    return [
        ["add", "cluster", CLUSTER],
        ["add", "account", ACCOUNT, f"Cluster={CLUSTER}"],
        ["add", "qos", QOS_BRIEF, f"GraceTime={GRACE_SECONDS}"],
        ["add", "qos", QOS_ONE_GPU],
        ["add", "qos", QOS_HIGH, "Priority=100"],
        # Set after all QOS exist, since the list is read once.
        ["modify", "qos", QOS_HIGH, "set", f"Preempt={QOS_NORMAL},{QOS_BRIEF}"],
        [
            "add",
            "user",
            ",".join(users),
            f"Account={ACCOUNT}",
            f"QOS={every}",
            f"DefaultQOS={QOS_NORMAL}",
        ],
        # root's account is "root" at first.
        ["modify", "user", "root", "set", f"DefaultAccount={ACCOUNT}"],
    ]


# Only slurmctld registers GPUs as a resource with limits.
GPU_LIMIT = ("modify", "qos", QOS_ONE_GPU, "set", "MaxTRESPerUser=gres/gpu=1")
