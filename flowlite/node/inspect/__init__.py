"""What other commands ask of a node while it runs: `flow ssh`, `flow doctor`, `flow top`, bandwidth between nodes."""
