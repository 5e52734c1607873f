"""Scaling efficiency: the same run on more and more nodes, compared by one number that it reports."""
