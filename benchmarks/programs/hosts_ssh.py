"""Runs `true` on hosts with OpenSSH's client, all at a time: hosts_ssh.py CONFIG HOST..."""

import subprocess
import sys

if __name__ == "__main__":
    config, *hosts = sys.argv[1:]
    children = [
        subprocess.Popen(["ssh", "-F", config, host, "true"], stdin=subprocess.DEVNULL)
        for host in hosts
    ]
    sys.exit(sum(child.wait() != 0 for child in children) > 0)
