"""`outputs=`: files of the working directories of a task's nodes, brought to this machine."""
