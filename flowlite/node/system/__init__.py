"""The machine beneath: processes, signals, files, addresses, sockets, system calls."""
