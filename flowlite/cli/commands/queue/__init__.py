"""`flow queue` and `flow schedule`: tasks that wait for their turn, and commands that wait for their time.

`show.py` prints the queue as the store has it: who waits for which hosts, places or tasks, and when its turn is
expected. It computes nothing itself; the schedule is that of `supervise/queue`, which every waiting supervisor
computes in the same way. `schedule.py` lists, runs and removes commands at fixed times. Those are timers of the
system, a user's systemd or cron (`cli/system_timers.py`), since flowlite has no daemon; each starts an ordinary `flow
run`.

The two have in common only that something waits. Start with `show.py`.
"""
