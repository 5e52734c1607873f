"""Runs on hosts for `flow hosts check`: whether each can reach every other, and whether they share a directory.

serve SECONDS             listens on a free port, in the background; prints the port and the process id
end PID                   ends that process
reach JSON                [[name, address, port], ...]: connects to each; prints the failures by name
write PATH TEXT           writes a file
read PATH                 prints it
remove PATH
"""

# mypy: ignore-errors

import json
import os
import signal
import socket
import sys
import time


def serve(seconds):
    """Accepts connections for `seconds`."""
    try:
        # The others may know this host by addresses of either kind.
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
    except OSError:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("0.0.0.0", 0))
    listener.listen(256)
    child = os.fork()
    if child:
        sys.stdout.write(f"{listener.getsockname()[1]} {child}\n")
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        listener.settimeout(max(0.01, until - time.monotonic()))
        try:
            connection, _ = listener.accept()
            connection.sendall(b"flowlite")
            connection.close()
        except OSError:
            # Without a free descriptor the connection stays in the queue, and the loop would spin.
            time.sleep(0.1)


def end(pid):
    """Ends a process of `serve`, unless its id belongs to another program by now."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"\0serve\0" in file.read():
                os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def reach(others):
    """The error of each address that could not be reached, by name."""
    failed = {}
    for name, address, port in others:
        try:
            with socket.create_connection((address, port), timeout=4) as connection:
                if connection.recv(8) != b"flowlite":
                    failed[name] = "somebody else answered"
        except TimeoutError:
            failed[name] = "no answer within 4 s"
        except OSError as error:
            failed[name] = error.strerror or str(error)
    return failed


def main():
    """Runs one of these commands."""
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "serve":
        serve(float(rest[0]))
    elif what == "end":
        end(int(rest[0]))
    elif what == "reach":
        sys.stdout.write(json.dumps(reach(json.loads(rest[0]))) + "\n")
    elif what == "write":
        with open(rest[0], "w") as file:
            file.write(rest[1])
            file.flush()
            os.fsync(file.fileno())
    elif what == "read":
        with open(rest[0]) as file:
            sys.stdout.write(file.read() + "\n")
    elif what == "remove":
        os.unlink(rest[0])


if __name__ == "__main__":
    main()
