"""Disk use of ended tasks: removing them, pruning their inputs and logs, and measuring their size."""
