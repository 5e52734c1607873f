"""Streams the output of workers, as bytes addressed by offset: files are followed, sent in windows and acknowledged.

The file on the node is the source of truth. `tailer.py` reads it, `flow_control.py` says, without I/O, which bytes of
which stream are sent next and which have arrived, and `output_tail.py` has sizes and last lines for reports.

At most one window is under way, so heartbeats never queue behind logs, and back-pressure slows the tailer but never the
worker. A line that is lost or repeated was lost here, or where bytes become files (`supervise/attempt/log_writer.py`),
or where files become lines (`output/reader.py`).

Imports `protocol`, `system` and `config`. Start with `flow_control.py`.
"""
