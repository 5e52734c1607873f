"""How the nodes of an attempt become a gang, and how it ends.

Two pure state machines, `Rendezvous` (leader.py) and `Member` (member.py): messages and times go in, actions come
out. They hold no socket and no clock, so a simulation runs the same code through thousands of seeds of delays, drops,
restarts, duplicates and clock skew. `server.py` and `member_client.py` are the sockets around them;
`supervisor_client.py` is how the supervisor follows.

```text
gathering ──all joined, all agree──> preparing ──all ready──> running ──> stopping ──> ended
```

- Every message carries task and attempt; another attempt is refused.
- Time is the leader's monotonic clock at receipt. Clocks of two machines are never compared, except for a warning.
- A member that loses its connection reconnects and repeats what it has to say; both sides ignore what they know.
- A silent member (8 s, or a broken connection that does not come back) is suspected. The supervisor looks through its
  own connection, and only then says lost. Without a supervisor the leader decides after 30 s, with one after 45 s;
  before GO, when no worker could run twice, after `join_timeout_seconds`.
- A leader whose process exists but says nothing for 45 s is lost once the others have stopped for want of it.
- The leader chooses MASTER_PORT, listens on it while members prepare and connect to it as a proof, and closes it
  before GO.
- Events to the supervisor are numbered; one that attaches again gets exactly what it has not had.

Stopping at one step is a vote (stop_vote.py): each node holds its workers in their next call of `should_stop()` and
reports these calls, and the leader takes the latest.
"""
