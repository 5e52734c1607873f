"""Commands that inspect a running node: for `flow ssh`, `flow doctor`, `flow top`, and bandwidth between nodes."""
