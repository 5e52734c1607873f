"""The Python environment of workers: found, or made with uv under a lock.

It is made once for all tasks of a host, and marked as whole last.
"""
