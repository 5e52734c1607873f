"""`outputs=`: which files of the working directory are collected from a node, and which others a task wrote there."""
