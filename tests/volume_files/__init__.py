"""`flow volumes put`, `get`, `ls` and `rm`."""
