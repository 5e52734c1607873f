"""What may be in the air when flowlite is started: the variables that other launchers leave in a process of theirs."""

from __future__ import annotations

SHELL_OF_SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_SUBMIT_DIR": "/data/me",
    "SLURM_NTASKS": "16",
    "SLURM_NPROCS": "16",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_TASKS_PER_NODE": "8(x2)",
}
"""An interactive shell of `salloc`, or a batch script before its `srun`."""

TASK_OF_SLURM = {
    **SHELL_OF_SLURM,
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_LAUNCHER_PORT": "41234",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "5",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0,1,2,3,4,5,6,7",
    "SLURM_TASK_PID": "991",
    "PMI_RANK": "5",
    "PMI_SIZE": "16",
    "PMI_FD": "9",
    "PMIX_RANK": "5",
    "PMIX_NAMESPACE": "slurm.pmix.4711.0",
    "PMIX_SERVER_URI2": "pmix-server.900;tcp4://127.0.0.1:41235",
}

ONE_TASK_OF_SLURM = {
    **TASK_OF_SLURM,
    **dict.fromkeys(
        ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "1"
    ),
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "PMI_SIZE"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMIX_RANK"), "0"),
}
"""`srun --pty bash`, in which somebody starts `flow`."""

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "1",
    "OMPI_APP_CTX_NUM_PROCS": "1",
    "OMPI_FIRST_RANKS": "0",
    "OMPI_NUM_APP_CTX": "1",
    "OMPI_MCA_ess_base_jobid": "123456",
    "OMPI_MCA_ess_base_vpid": "0",
    "OMPI_MCA_orte_hnp_uri": "123456.0;tcp://127.0.0.1:40001",
    "OMPI_MCA_orte_local_daemon_uri": "123456.0;tcp://127.0.0.1:40001",
    "PMIX_RANK": "0",
}

HYDRA = {
    "PMI_RANK": "0",
    "PMI_SIZE": "1",
    "PMI_FD": "7",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
}
"""`mpiexec` of MPICH and of Intel MPI."""

MVAPICH = {
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "1",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
    "MV2_COMM_WORLD_LOCAL_SIZE": "1",
}

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "8",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "10.255.255.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic/error.json",
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "8",
    "PET_STANDALONE": "1",
}

DEEPSPEED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
    # With four ranks in all, DeepSpeed would reduce through shared memory, across machines.
    "LOCAL_SIZE": "4",
}

LSF = {
    "LSB_JOBID": "4711",
    "LSB_DJOB_RANKFILE": "/nowhere",
    "JSM_NAMESPACE_RANK": "0",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_SIZE": "1",
}

HOROVODRUN = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "1",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "1",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_HOSTNAME": "elsewhere",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
}

OUTER_TASK = {
    "FLOW_TASK_ID": "touter00000",
    "FLOW_NODE_RANK": "7",
    "FLOW_NUM_NODES": "9",
    "FLOW_MAIN_IP": "10.255.255.1",
    "FLOW_NODE_IPS": "10.255.255.1",
    "FLOW_HOSTFILE": "/nowhere/hostfile",
    "FLOW_ACCELERATE_CONFIG": "/nowhere/accelerate.yaml",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "NODE_RANK": "1",
}

AIRS = {
    "a shell of Slurm": SHELL_OF_SLURM,
    "a task of Slurm": TASK_OF_SLURM,
    "the only task of Slurm": ONE_TASK_OF_SLURM,
    "Open MPI": OPEN_MPI,
    "MPICH": HYDRA,
    "MVAPICH": MVAPICH,
    "torchrun": TORCHRUN,
    "DeepSpeed": DEEPSPEED,
    "LSF": LSF,
    "horovodrun": HOROVODRUN,
    "a task of flowlite": OUTER_TASK,
    "a RANK alone": {"RANK": "0"},
    "a WORLD_SIZE alone": {"WORLD_SIZE": "1"},
    "a LOCAL_RANK alone": {"LOCAL_RANK": "0"},
}

ALL = {name: value for air in AIRS.values() for name, value in air.items()}
"""All of them at once."""
