"""Sidecars: processes beside the agent that mount, serve or copy, and end with it.

`agent_side.py` starts one and follows it; `process_side.py` has what such a process does by itself. The rooms of
storage use both, and so does the relay of gangs that node 0 leads (`leader_run/`).

Imports `system`.
"""
