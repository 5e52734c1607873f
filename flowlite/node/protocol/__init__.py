"""What goes over a wire between two processes of flowlite, and the check of all that comes in.

A connection of the rendezvous opens with three frames in which both sides prove, over both nonces, that they know the
task's secret. After that every frame carries an HMAC-SHA256 with a session key for each direction and the frame's
number, so a forged, changed, dropped, reordered or replayed frame ends the connection. Before the proof a frame is at
most 4 KiB, a peer has 5 s, and at most 256 peers may be unproved at a time. Bodies are JSON of at most 1 MiB; log
bytes travel beside them. Between machines this runs inside TLS 1.3: members and supervisor accept the one certificate
that the supervisor made for the attempt.

`messages.py` lists all messages. `message_check.py` checks what another machine says before anybody acts on it:
messages in both directions, events, files that an agent leaves. `mux_framing.py` frames the pipe of the mux server
(`helper/`).
"""
