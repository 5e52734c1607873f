"""Where workers come from: a fork server that imports once, and a reaper for each node of a task.

The fork server (server.py) imports what the function needs, read from its code by the client, while the supervisor is
still starting the agents. A reaper (reaper.py) is forked from it for each agent, and forks that node's workers. It
adopts orphans, so grandchildren are found when workers are stopped, and it stops its workers when the agent's
connection ends, whatever the reason. CUDA is not touched before the fork; if an import did touch it, or on macOS,
workers are new processes.

With `keep_warm` the fork server belongs to no task. It is found by a key made from all that a process inherits from
its starter (compatibility.py), and ends when nobody has used it for that time, whoever looks (registry.py). What it
has loaded is compared with the disk before every fork; a stale one retires (staleness.py). A forked process shows the
fork server's environment in /proc, by which processes of a task are found, so a reaper first rewrites those bytes in
its own memory (`system/process_title.py`).
"""
