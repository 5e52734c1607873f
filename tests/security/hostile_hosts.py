"""What a hostile host says: shell scripts that run in place of whatever is asked of it."""

from __future__ import annotations

BEGIN = "echo flowlite-begins $$; echo flowlite-begins >&2\n"
ZEROS = "exec cat /dev/zero"
HOSTS: dict[str, tuple[str, str, str]] = {
    "noise before the command": ("ssh_run", ZEROS, "is longer than 1 MiB"),
    "noise on the other output": ("ssh_run", f"{ZEROS} >&2", "is longer than 1 MiB"),
    "output without end": ("ssh_run", BEGIN + ZEROS, "is longer than 4 MiB"),
    "complaints without end": ("ssh_run", BEGIN + f"{ZEROS} >&2", "is longer than 4 MiB"),
    "lines without end": ("ssh_run", BEGIN + "exec yes", "is longer than 4 MiB"),
    "a byte now and then": (
        "ssh_slow_run",
        BEGIN + "while :; do echo x; sleep 0.01; done",
        "did not end within 2",
    ),
    "bytes that are no text": ("ssh_run", BEGIN + "exec cat /dev/urandom", "is longer than 4 MiB"),
    "the mark again and again": ("ssh_run", "exec yes 'flowlite-begins 1'", "is longer than"),
    "a process id of 900,000 digits": (
        "ssh_slow_run",
        "printf 'flowlite-begins '; head -c 900000 /dev/zero | tr '\\0' 1; echo; "
        "echo flowlite-begins >&2; exec sleep 900",
        "did not end within 2",
    ),
    "a file without end": ("ssh_read", BEGIN + ZEROS, "is longer than 4 MiB"),
    "complaints about a file": ("ssh_read", BEGIN + f"{ZEROS} >&2", "is longer than 4 MiB"),
    "an answer to a file": ("ssh_put", BEGIN + f"cat >/dev/null & {ZEROS}", "is longer than"),
    "a courier's head without end": ("ssh_courier", BEGIN + ZEROS, "answers nonsense"),
    "a courier's content without end": (
        "ssh_courier",
        BEGIN + """echo '{"size": 1000}'; """ + ZEROS,
        "answers nonsense",
    ),
    "a courier's content of 10 GB": (
        "ssh_courier",
        BEGIN + """echo '{"size": 10000000000}'; """ + ZEROS,
        "answers nonsense",
    ),
    "a courier's size below nothing": (
        "ssh_courier",
        BEGIN + """echo '{"size": -1}'; sleep 5""",
        "answers nonsense",
    ),
    "a courier's size of 900,000 digits": (
        "ssh_courier",
        BEGIN + """printf '{"size": '; head -c 900000 /dev/zero | tr '\\0' 1; echo '}'""",
        "answers nonsense",
    ),
    "a courier's answers to nothing": (
        "ssh_courier",
        BEGIN + """exec yes '{"size": 0}'""",
        "answers nonsense",
    ),
    "a courier's deep document": (
        "ssh_courier",
        BEGIN + "head -c 300000 /dev/zero | tr '\\0' '['; echo",
        "answers nonsense",
    ),
    "a courier's complaints": ("ssh_courier", BEGIN + f"{ZEROS} >&2", "is longer than 4 MiB"),
    "hosts check, without end": ("hosts_check", BEGIN + ZEROS, "is longer than"),
    "hosts check, noise": ("hosts_check", ZEROS, "is longer than"),
    "hosts check, a document of 3 MB": (
        "hosts_check",
        BEGIN + "head -c 3000000 /dev/zero | tr '\\0' '['; echo",
        "does not say what it is",
    ),
    "hosts check, a document of 600,000 objects": (
        "hosts_check",
        BEGIN + "printf '['; yes '{},' | head -n 600000 | tr -d '\\n'; echo '{}]'",
        "does not say what it is",
    ),
}
"""By name: what is asked of the host in test_memory.py, the script, and what is told of its answer."""
