"""Streams the output of workers, as bytes addressed by offset: files are followed, sent in windows and acknowledged.

An agent sends at most one window ahead of what the supervisor has written to its own files. So heartbeats never queue
behind logs, and back-pressure slows the tailer but never the worker. After a reconnect the supervisor continues from
the length of its files.
"""
