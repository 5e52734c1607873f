"""Runs Slurm batch scripts on any provider, with flowlite's own `srun` and `scontrol`.

The worker of every rank waits for tasks; the worker of rank 0 also runs the script. `srun` asks the router in the
leader's agent, which assigns tasks to workers (`layout.py`) and relays their output. Tasks are children in the
worker's process group, so stopping a worker stops them too, and their output is that of a rank.

    worker.py, task_runner.py, router.py, srun.py, scontrol.py    the processes
    srun_options.py, getopt.py, layout.py, hostlist.py, filename_patterns.py, slurm_environment.py    pure
    rendezvous_file.py, shell_startup.py, process_limits.py       how a script finds them; what tasks inherit
    slurm_programs.py                                             Slurm's own, where a node has them

`spec/batch/` reads the `#SBATCH` lines of a script on the submitting machine. Slurm itself as a provider is
`provider_adapters/slurm`. Imports `protocol`, `system` and `config`. Start with `router.py`.
"""
