"""What machines rented from any cloud share: how a launch is recorded, how they boot, how they are reached and end.

A cloud adapter makes machines, lists them, ends them, and says how to reach them; all else is as on any host.

Nothing is made that is not written down. The supervisor's intent is in the store before `launch` is called; each
request that may make something is in the ledger (ledger.py, one fsync'd file for each launch token) before it is
sent, with its idempotency token or unique name and all its parameters. If its outcome is unknown (time-out, 5xx, a
kill), it is settled before anything else is done for the task: by sending the very same request again (EC2), or by
looking for the name (Mithril).

`launch` does not wait. While machines boot it raises `CapacityUnavailable` with the time until the next look, and is
called again with the same token; so a cancel is heard, and a supervisor that was killed goes on where it was. Only an
answer that means no is a no: faults of the cloud, throttling and a broken network are asked again with growing pauses
until `boot_timeout`.

One shell script (userdata.py) starts the watchdog before all else, lets our key in, and gives sshd a throw-away host
key, which the client made and pinned. At first contact (contact.py) the machine makes a key of its own; the client
pins both, has sshd change over, sees it, and pins the new one alone.

The watchdog (watchdog.py) switches the machine off when it has run for longer than its deadline, or when nobody has
renewed its lease: a file with an uptime in it, which the agent writes as long as it lives
(`node/preemption/lease_file.py`). No clock is compared, and nobody has to be there.
"""
