"""Measures scaling efficiency: repeats a run on more and more nodes, and compares a number that it reports."""
