"""Preemption notices, and the agent's half of `should_stop()`.

`notices.py` polls the cloud or Slurm for a notice. `stop_watch.py` renews the machine's lease, reports a notice to the
leader, and lets workers know in time. Worker and agent share one page of memory (shared_page.py; the other half is
`in_worker/should_stop.py`), so a call of `should_stop()` costs almost nothing as long as there is no notice.
"""
