"""Programs that are sent to hosts as text, and run there on any Python from 3.6 on.

`probe_script.py` reports what a host is (Pythons, GPUs, cores, disk, addresses) and who holds it, as one line of
JSON; `ssh/hosts.py` caches it until the host reboots. `links_script.py` shows for `flow hosts check` which hosts
reach one another, and whether they share a directory.

A host may have nothing of flowlite, and no Python that is new enough for it. These programs, and the modules of
`node` that are sent before them (`connect/programs.py`), use nothing that is younger than Python 3.6. What a host
answers is checked in `ssh/host_answers.py` before it is used. Start with `probe_script.py`.
"""
