"""Notifications when a task has ended, has failed or has reached a cap: by a command, a webhook or Apprise."""
