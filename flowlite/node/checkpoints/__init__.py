"""Copies of a checkpoint directory, to another directory or a bucket, while a run goes on.

The sidecar copies files that have stopped changing (stability.py). A set has a manifest that is written last, so it
is complete or absent. Before the next attempt the newest complete set is brought back (restore.py).
"""
