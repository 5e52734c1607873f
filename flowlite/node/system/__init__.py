"""Access to the machine: processes, signals, files, addresses, sockets, system calls."""
