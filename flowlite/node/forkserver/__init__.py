"""The fork server, which imports once, and the reapers and workers that are forked from it.

The fork server (`server.py`) imports the modules that the function needs, while the supervisor is still starting the
agents. The client finds these modules by reading the function's code. For each agent the fork server forks a reaper
(`reaper.py`), which forks that node's workers. The reaper adopts orphans, so it finds grandchildren when it stops
workers. When its connection to the agent ends, for any reason, it stops the workers. CUDA is not initialised before
the fork. If an import did initialise it, or on macOS, workers are spawned instead of forked. For a script of Python,
the fork server is a Python that is held before its script (`paused_python.py`), and `worker_choice.py` decides which
workers run there.

With `keep_warm` a fork server belongs to no task. Clients find it by a key made from everything that a process
inherits from its parent (`compatibility.py`). It ends after that time without use (`registry.py`). Before every fork
it compares the modules it has loaded with the disk, and retires if one has changed (`staleness.py`). A forked process
shows the fork server's environment in /proc, and the processes of a task are found by that environment. A reaper
therefore first rewrites these bytes in its own memory (`system/process_title.py`).
"""
