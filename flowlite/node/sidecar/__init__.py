"""Sidecars: processes beside the agent that mount, serve or copy, and end with it.

`agent_side.py` starts one, holds its pipe and follows the lines of JSON that it reports. `process_side.py` has what
such a process does by itself: it watches the pipe, which only the agent holds, and cleans up when the pipe ends,
however the agent has ended.

The rooms of storage use both (`buckets`, `checkpoints`, `attached_volumes`, `leader_volumes`), and so does the relay
of gangs that node 0 leads (`leader_run`). What one of them mounts or copies is said there.

Imports `system`. Start with `process_side.py`.
"""
