"""The working directory of a task on a node, made from the files of the project that are sent with the task.

What travels of a project is one listing (`bundle/project_files.py`; ignore rules are shared with the snapshot of a
function's source, `bundle/ignore_rules.py`). At submission the contents go to `FLOW_HOME/files/<sha256>`, once for
all tasks, and the task keeps a manifest: paths, hashes, modes, links (`bundle/project_snapshot.py`). A file whose
times and size are those of the last time is not read again, unless it was changed within 2 s before that.

Before an agent starts, its node is asked to make the working directory (`supervise/attempt/project.py`,
`node/project_files/make.py`). It says which contents it lacks; large ones are sent one by one, those below 1 MiB in
one pack, which is made once for all nodes that lack the same. A node can request only contents of its own task's
manifest. The directory is a copy, compared with the hashes while it is written, and appears by one rename when it is
complete; a content that is damaged is removed and sent again. Nothing is written through a link, and a manifest with
a path that leads out is refused. `AgentConfig.workdir` is the directory in which the workers start.

On the local provider the workers start in the directory itself, unless `sync=True` or `files=` ask for a copy: a
program on the user's own machine is expected to leave its files where it was started. `plan.options["workdir"]` says
so: where it is set, nothing travels.
"""
