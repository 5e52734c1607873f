"""`flow queue` and `flow schedule`: tasks that wait for their turn, and commands that wait for their time."""
