"""Access to the machine: processes, signals, files, addresses, sockets, system calls.

Each module hides one part of the operating system from the rooms above, and knows nothing of gangs.

    processes.py, signals.py, caught_signals.py    finding and ending processes; signals, and who handles them
    process_title.py, daemonize.py                 what /proc shows of this process; commands that outlive their caller
    atomic_files.py, ownership.py, runtime_dir.py  files that appear whole; who may change them; where sockets lie
    file_lock.py                                   files that processes lock in turn
    addresses.py                                   how this machine reaches another one
    accepting.py, peer_credentials.py              connections that arrive, and the user behind one
    node_facts.py, library_versions.py, oom.py     what a node reports of itself
    stack_dump.py, trace.py                        Python stacks of workers; FLOW_TRACE
    retrying.py                                    an outage told from a firewall, for all checks before GO
    libc.py, byte_sizes.py                         system calls that Python 3.11 lacks; sizes for people

Imports only the standard library and `config`. Start with `processes.py`: a process is always its id together with
its start time, since the kernel uses ids again.
"""
