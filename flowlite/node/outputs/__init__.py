"""`outputs=`: which files of the working directory are collected from a node, and which others a task wrote there.

`patterns.py` reads the patterns; `spec/fields.py` checks them with it when a task is made. `listing.py` lists the
files that match, and those of them that changed since the agent of the first attempt started: the others came from
the submitting machine. It is the subcommand `outputs`, which answers one line of JSON, and the agent calls it to name
the files that no pattern keeps (the notice "unkept"). `contents.py` prints many small files in one answer.

Nothing is sent from here on its own. The supervisor asks, fetches and writes the files
(`supervise/attempt/outputs/`), and checks what this room has answered, since a node may lie.

Imports the standard library, `system`, `mount_namespace` and `project_files`. Start with `listing.py`.
"""
