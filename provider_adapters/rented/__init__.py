"""The parts that cloud adapters share: the record of launches, boot, first contact and the end of rented machines.

A cloud adapter creates, lists and ends machines, and says how to reach them. Everything else works as on any host.

Everything is recorded before it is created. The supervisor's intent is in the store before `launch` is called. Each
request that may create something is in the ledger (`ledger.py`, one fsync'd file per launch token) before it is sent,
with its idempotency token or unique name and all its parameters. If its outcome is unknown (timeout, 5xx, a kill), it
is settled before anything else is done for the task: by sending the very same request again (EC2), or by looking for
the name (Mithril).

`launch` does not block. While machines boot it raises `LaunchPending` with the time until the next check, and is
called again with the same token. A cancel therefore takes effect, and a supervisor that was killed continues where it
was. Only an explicit refusal ends the launch; faults of the cloud, throttling and network errors are retried with
growing pauses until `boot_timeout`.

One shell script (`userdata.py`) starts the watchdog first, authorizes our key, and gives sshd a throw-away host key,
which the client has created and pinned. At first contact (`first_contact.py`) the machine creates a key of its own. The
client pins both, has sshd switch to the new key, verifies it, and then pins the new key alone.

The watchdog (`watchdog.py`) powers the machine off when it has run for longer than its deadline, or when its lease was
not renewed. The lease is a file with an uptime in it, which the agent writes as long as it lives
(`node/preemption/lease_file.py`). No wall clocks are compared, and the client need not be reachable.
"""
