"""The agent: one process for each node and attempt.

An agent joins the rendezvous, and on the leader also serves it. It prepares storage, the Python environment and the
fork server, starts the workers at GO, and reports how each of them ended. It enforces the longest run time by itself,
and stops its workers when the leader was silent for `fence_after` seconds. It holds no pipe to the process that started
it, so the agent runs on when that connection is closed.

An agent leaves its files in the directory of its attempt: `agent.log`, `report.json`, and the files of its workers. In
a gang of one machine it never imports `ssl`, which would take a third of its memory.

Start reading with `agent.py`. `main.py` is the entry point, `storage.py` prepares and removes volumes, buckets and
checkpoints in the right order.
"""
