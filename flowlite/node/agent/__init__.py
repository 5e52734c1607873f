"""The agent: one process for each node and attempt.

It joins the rendezvous (on the leader it serves it, too), prepares storage, environment and workers, starts the
workers at GO, reports how each ended, and enforces the longest run time by itself. It stops its workers when the
leader was silent for `fence_after` seconds. It holds no pipe of whoever started it, so a closed connection changes
nothing.

What an agent leaves is in its attempt's directory: `agent.log`, `report.json`, the files of its workers. On a gang of
one machine it never imports `ssl`, which would take a third of its memory.

Start with `agent.py`; `main.py` is the entry point, `storage.py` orders volumes, buckets and checkpoints.
"""
