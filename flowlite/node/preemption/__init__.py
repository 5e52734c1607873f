"""Notice that a node will be taken away, and the agent's half of `should_stop()`.

`notices.py` asks the cloud or Slurm. `stop_watch.py` renews the machine's lease, hears the notice and has workers
told in time. Worker and agent share one page of memory (shared_page.py; the other half is
`flowlite/in_worker/should_stop.py`), so a call costs nothing while nothing happens.
"""
