"""The Python environment of workers: found on the node, or made with uv under a lock.

It is made once for all tasks of a host. The mark that it is complete is written last.
"""
