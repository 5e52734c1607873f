"""One rank: its environment, its call, its end.

A worker has a session and process group of its own, standard input from /dev/null, output to files, unbuffered, and
the environment of `environment.py`, which is the one table of its variables. A command replaces the process. A
function is loaded (hash and Python version are checked first), called, and its outcome is written; then exit handlers
run, and the process leaves without taking the interpreter down, which costs torch a second. Ranks with a process
group leave together, rank 0 last, since it holds the store that others may still need (torch_teardown.py). They
connect to that store when it listens (torch_store.py): torch tries again only 0.3 to 1.1 s after it came too early.

Trainers read ranks in different orders, and some train alone without an error, so the environment drops what other
launchers left. In manual mode `launcher_files.py` writes a hostfile and a configuration of Accelerate.
"""
