"""The working directory of a task on a node, made from the files of the project that are sent with the task."""
