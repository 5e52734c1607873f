"""Messages between flowlite's processes: their format, their authentication and the check of incoming ones.

Every connection between the processes of a task, to the rendezvous or any other service, opens with three frames in
which both sides prove that they know the task's secret (`framing.py`). Before the proof a frame is at most 4 KiB, a
peer has 5 s, and at most 256 peers may be unauthenticated at a time. Headers are JSON of at most 1 MiB; log bytes
follow them in the same frame. Streams to volumes and commands are plain after the opening. Between machines the
connection runs inside TLS 1.3: members and supervisor accept only the certificate that the supervisor made for the
attempt.

`messages.py` lists all messages. `message_check.py` validates what another machine sent before it is used: messages in
both directions, events, and the files that an agent leaves. `mux_framing.py` frames the pipe of the mux server
(`node/helper/`).
"""
