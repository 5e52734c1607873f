"""The names that other tools use for a task's options, for error messages about unknown options."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowlite.settings.suggest import did_you_mean

# Option of flowlite -> its names in SkyPilot, dstack, Modal, submitit, Ray, torchrun, SageMaker and Slurm. Dashes,
# underscores and capitals do not count.
_ELSEWHERE: Mapping[str, str] = {
    "num_instances": "nodes num_nodes nnodes n_nodes node_count instances instance_count num_machines machines "
    "replicas workers num_workers cluster_size",
    "processes_per_node": "nproc nproc_per_node procs_per_node num_processes ntasks_per_node tasks_per_node ntasks "
    "local_world_size workers_per_node",
    "gpu": "gpus gpu_type gpu_count num_gpus gpus_per_node gpus_per_task accelerators accelerator instance_type "
    "machine_type",
    "cpu": "cpus cpu_count num_cpus cpus_per_task cores",
    "memory": "mem mem_gb memory_gb memory_mb ram",
    "distributed_mode": "launcher distributed distribution strategy",
    "volumes": "volume storage storages network_file_systems persistent_volumes disks",
    "mounts": "mount cloud_bucket_mounts buckets s3",
    "environment": "env envs env_vars env_variables environ environment_vars environment_variables variables",
    "secrets": "secret secret_env",
    "image": "docker docker_image container container_image image_id image_uri",
    "dependencies": "requirements requirements_txt requirements_file packages pip pip_packages pip_install deps "
    "python_packages install conda conda_env",
    "python": "python_version py_version",
    "outputs": "output artifacts artifact output_dir outputs_dir results_dir download downloads output_data",
    "setup": "setup_commands setup_command setup_script setup_cmd init_commands initialization_commands worker_setup "
    "run_commands pre_run prolog",
    "priority": "tier",
    "spot": "use_spot spot_policy preemptible preemptable interruptible use_spot_instances capacity_type",
    "max_price_per_hour": "max_price price price_cap max_hourly_price limit_price bid max_hourly_cost",
    "max_run_time_hours": "timeout timeout_seconds timeout_min timeout_minutes timeout_hours time time_limit walltime "
    "max_time max_run max_run_time max_runtime max_duration max_seconds execution_timeout timelimit duration",
    "max_cost": "budget max_budget cost cost_limit spend_limit",
    "keep_warm": "autostop idle_timeout idle_duration idle_minutes idle_minutes_to_autostop scaledown_window "
    "container_idle_timeout min_containers keep_alive keepalive reuse linger",
    "retries": "retry max_retries num_retries max_restarts restarts max_failures retry_policy job_recovery "
    "attempts max_attempts",
    "provider": "cloud backend backends infra infrastructure cluster vendor",
    "region": "zone regions zones availability_zone availability_zones location",
    "slurm": "partition slurm_partition account slurm_account qos slurm_qos constraint slurm_constraint gres "
    "slurm_gres exclusive slurm_additional_parameters slurm_array_parallelism reservation",
    "grace_seconds": "grace_period stop_timeout termination_grace_period stop_grace_period timeout_graceful",
    "stop_signal": "signal kill_signal",
    "join_timeout_seconds": "join_timeout rdzv_timeout start_timeout startup_timeout",
    "checkpoint": "checkpoints checkpoint_config checkpoint_dir resume_from_checkpoint",
    "workdir": "working_dir work_dir cwd chdir working_directory",
    "sync": "copy_files upload sync_files rsync",
    "files": "file add_files add_local_file add_local_dir local_files input_files",
    "name": "job_name task_name run_name title label",
    "command": "run cmd commands entrypoint script args",
}
_SEVERAL: Mapping[str, tuple[str, ...]] = {
    "resources": ("gpu", "cpu", "memory"),
    "filemounts": ("files", "volumes", "mounts"),
    "scalingconfig": ("num_instances", "processes_per_node", "gpu"),
    "runtimeenv": ("dependencies", "environment", "python"),
}
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    **{
        word.replace("_", ""): (option,)
        for option, words in _ELSEWHERE.items()
        for word in words.split()
    },
    **_SEVERAL,
}

# Options of `flow run` whose names differ from that of the task's option.
_FLAGS: Mapping[str, str] = {
    "num_instances": "-N",
    "distributed_mode": "--mode",
    "environment": "--env",
    "volumes": "--volume",
    "mounts": "--mount",
    "secrets": "--secret",
    "files": "--file",
    "command": "-- COMMAND",
}


def option_for(word: str, known: Collection[str]) -> str:
    """A clause for the error about an unknown option: its name in flowlite, else the most similar name, else ""."""
    found = [option for option in _options(word) if option in known]
    return _clause(found) or did_you_mean(word, known)


def flag_for(word: str, known: Collection[str], own: Collection[str] = ()) -> str:
    """As `option_for`, for the command line. For an option without a flag, the clause says where to write it.

    `own` has the options of a task, if the command takes them.
    """
    name = word.lstrip("-").replace("-", "_")
    options = (name,) if name in own else _options(name)
    flags = [flag for flag in map(_flag, options) if flag in known or flag.startswith("-- ")]
    if flags or not options:
        return _clause(flags) or did_you_mean(word, known)
    return f"; write {options[0]} in the decorator or in a task file"


def _options(word: str) -> tuple[str, ...]:
    return _OPTIONS.get(word.lower().replace("-", "").replace("_", ""), ())


def _flag(option: str) -> str:
    return _FLAGS.get(option, f"--{option.replace('_', '-')}")


def _clause(names: list[str]) -> str:
    if not names:
        return ""
    quoted = [repr(name) for name in names]
    several = f"{', '.join(quoted[:-1])} or " if quoted[1:] else ""
    return f"; did you mean {several}{quoted[-1]}?"
