"""Preemption notices, and the agent's half of `should_stop()`.

`notices.py` polls the cloud, or reads what the step daemon of a Slurm job has noted, for a notice. `stop_watch.py`
renews the machine's lease (`lease_file.py`), reports a notice or a deadline to the leader, and lets workers know in
time. Worker and agent share one page of memory (`shared_page.py`; the other half is `in_worker/should_stop.py`), so a
call of `should_stop()` costs almost nothing as long as there is no notice.

Which step the ranks stop at is not decided here: the leader does, by a vote (`rendezvous/stop_vote.py`). That the
machine ends itself when its lease is not renewed is the watchdog's work (`provider_adapters/rented/watchdog.py`).

Imports `rendezvous`, `protocol`, `system` and `config`. Start with `stop_watch.py`.
"""
