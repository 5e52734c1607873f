"""Programs that are sent to hosts as text, and run there on any Python from 3.6 on.

`probe_script` reports what a host is and who holds it. `links_script` shows for `flow hosts check` which hosts reach
one another, and whether they share a directory.
"""
