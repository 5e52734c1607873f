"""Notifications when a task has ended, has failed or has reached a cap: by a command, a webhook or Apprise.

`targets.py` tells the three kinds of targets apart, checks them, and shows them without the keys that most URLs
contain. `sending.py` sends one message to one target, never takes longer than its time limit, and reads no answer
beyond its status.

This room knows neither tasks nor the store. `supervise/process/notifications.py` makes the message of an event, and
sends it in a process of its own, so that a target that hangs cannot delay a supervisor. Targets are in a file of the
task that only its owner can read (`notify.json`), and never in the store.

Imports `settings`, `output` and `terminal`; `spec` imports it to check `notify=`. Start with `targets.py`.
"""
