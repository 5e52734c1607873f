"""The agent: one process for each node and attempt.

An agent joins the rendezvous, and on the leader also serves it. It prepares, in this order: the Python environment,
buckets and volumes, the fork server, the proofs of `go_checks.py` (master port, volumes), and the newest checkpoint.
Where there is a `setup=`, its commands come after the proofs, and the fork server after them. At GO it starts the
workers, and reports how each of them ended. It enforces the longest run time by itself, and stops its workers when
the leader was silent for `fence_after` seconds. It holds no pipe to the process that started it, so the agent runs on
when that connection is closed.

An agent leaves its files in the directory of its attempt: `agent.log`, `report.json`, and the files of its workers.
In a gang of one machine it never imports `ssl`, which would take a third of its memory. The agent of a spare machine
has the attempt 0 and only gets ready (`spare.py`); it leaves when one with a rank starts.

Start reading with `agent.py`. `main.py` is the entry point, `forkserver_spec.py` says which fork server the workers
need, and `storage.py` prepares and removes volumes, buckets and checkpoints in the right order. Imports every room of
`node` but `helper` and `slurm_step`.
"""
