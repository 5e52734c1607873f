"""`outputs=`: fetches files from the working directories of a task's nodes to this machine.

Every node lists the files that match (`node/outputs`; a file is new if its inode changed since the start). The list
is checked before it is used (`manifest.py`). The files are read through `Connection.read` into `.flow-incoming` and
then renamed with a hard link, which fails if the name exists (`output_directory.py`); small ones are read many at a
time (`packs.py`). A file at its final name is complete, so a supervisor that takes over asks for the list again and
fetches the rest. Where a user chooses the directory, a file of the same name, size and time is compared by its
content (`digests.py`). A task whose ranks ended well but whose outputs are missing has failed.

`flow cp`, and `flow outputs` of a running task, use the same code (`api/node_files.py`). Where the working directory
is deleted with the node, the node's agent looks through it after the last worker has ended, and reports the files
that no pattern keeps (the notice "unkept"). Start with `fetch.py`.
"""
