"""The fork server, which imports once, and the reapers and workers that are forked from it.

The fork server (`server.py`) imports the modules that the function needs, while the supervisor is still starting the
agents. The client finds these modules by reading the function's code. For each agent the fork server forks a reaper
(`reaper.py`), which forks that node's workers. The reaper adopts orphans, so it finds grandchildren when it stops
workers. When its connection to the agent ends, for any reason, it stops the workers. CUDA is not initialised before
the fork. If an import did initialise it, or on macOS, workers are spawned instead of forked.

A script (`python train.py`) is forked, too. Its fork server is the very Python of the command, held in `site` just
before its script (`paused_python.py`): it was started with a placeholder in the script's place, and imports what the
client has read from the script's source (`bundle/script.py`). In a forked worker the placeholder is overwritten,
`site` ends, and the interpreter runs the script (`worker/script.py`), so that no frame of flowlite is below it.

A worker in which imports would have had another effect is started anew, and not forked (`worker_choice.py`). So the
fork server notes what imports read (`observed_imports.py`), what they do to the process that a child does not
inherit, such as a timer (`process_state.py`), and whether a tracer or profiler is active (`active_tracers.py`).

With `keep_warm` a fork server belongs to no task. Clients find it by a key made from everything that a process
inherits from its parent (`compatibility.py`). It ends after that time without use (`registry.py`). Before every fork
it compares the modules it has loaded with the disk, and retires if one has changed (`staleness.py`). A forked process
shows the fork server's environment in /proc, and the processes of a task are found by that environment. A reaper
therefore first rewrites these bytes in its own memory (`system/process_title.py`).

Imports `worker`, `mount_namespace`, `log_stream`, `protocol`, `system` and `config`. Start with `server.py`.
"""
