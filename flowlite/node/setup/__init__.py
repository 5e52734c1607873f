"""`setup=`: commands that a node runs once before its workers start."""
