"""`outputs=`: files of the working directories of a task's nodes, brought to this machine.

Every node lists what fits (`node/outputs`; the time of an inode's last change says what is new). The files come
through `Connection.read`, each to `.incoming` and then, by a hard link that fails where there is a file, to its name.
What has its name is whole, so a supervisor that takes over asks for the list again and brings the rest. A task whose
ranks ended well, and whose outputs are not here, has failed.

`flow cp` and `flow outputs` of a running task take the same way (`api/node_files.py`). Where the working directory goes
with the node, its agent looks through it when the last of its workers has ended, and names what no pattern keeps (the
notice "unkept").
"""
