"""The output of workers as bytes by offset: files are followed, sent in windows, and acknowledged.

An agent sends at most a window ahead of what the supervisor has written to its own files. So heartbeats never queue
behind logs, a slow reader slows the tailer and never the worker, and whoever reconnects goes on from the length of
the file.
"""
