"""The rendezvous: makes the nodes of an attempt a gang, and follows the gang to its end.

It consists of two pure state machines, `Rendezvous` (leader.py) and `Member` (member.py). They take messages and times
and return actions, and have no socket and no clock, so a simulation runs the same code through thousands of seeds of
delays, drops, restarts, duplicates and clock skew. `server.py` and `member_client.py` connect them to sockets.
`supervisor_client.py` is the supervisor's side. Start with `leader.py`, which has the phases of a gang.

- Every message carries the task and the attempt. Messages of another attempt are refused.
- Times are those of the leader's monotonic clock at receipt. Clocks of two machines are never compared, except for a
  warning.
- A member is suspected after 8 s of silence, or when its connection broke and it does not reconnect. The supervisor
  probes the node over a connection of its own, and only then declares it lost. Without a supervisor the leader declares
  it lost after 30 s, with one after 45 s; before GO, when no worker could run twice, after `join_timeout_seconds`.
- A leader whose process exists but which is silent for 45 s is lost, once the other nodes have stopped their workers
  because of its silence.
- The leader chooses MASTER_PORT and listens on it while members prepare. Each member connects to it as a check. The
  leader closes the port before GO.
- With `preflight=`, the leader compares the figures of all nodes before GO (outliers.py). If one is slow, the attempt
  ends with the outcome "sick", and the next attempt has another machine in its place.
- Events to the supervisor are numbered. A supervisor that attaches again gets exactly those that it lacks.

All workers stop at the same step by a vote (stop_vote.py): each node holds its workers in their next call of
`should_stop()` and reports the numbers of these calls, and the leader decides on the highest.
"""
