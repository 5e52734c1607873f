"""Copies of a checkpoint directory, to another directory or a bucket, made during the run.

The sidecar copies files that have stopped changing (`stability.py`). The manifest of a set is written last, so a set is
either complete or absent. Before the next attempt the newest complete set is restored (`restore.py`).
"""
