"""Serialises calls so that they can run on other machines, and reads their results.

`call.py` serialises a call. `script.py` reads what a command that runs Python imports, `command_files.py` which
launcher a shell script starts. `source.py` and `imports.py` find which of the project's modules to send.
`agent_zip.py` builds the node's program. Functions and classes that the main program's file has under the same name
and with the same code are sent by reference (`main_program.py`). Global variables are sent only if code that nodes do
not run may have changed them, which is read from the source (`changed_globals.py`): a rank or device that the top
level computes has another value on each node.

`files_to_send.py`, `project_files.py`, `git.py`, `ignore_rules.py` and `project_snapshot.py` are about the files of the
working directory; `node/project_files` makes the directory on a node. `result.py` reads result files, the other half of
`node/serialization`.

Code is read, by bytecode or syntax tree, and never run. Imports `spec`, `provider`, `settings`, `connect/values.py`
and rooms of `node`. Start with `call.py`.
"""
