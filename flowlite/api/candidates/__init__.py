"""Where a task may run: each place that would do is planned by its provider, compared with the caps, and ranked.

`alternatives.py` gives the single values that the options of a task allow, `capped_plan.py` makes the plan for one of
them, `planning.py` does so for all of them side by side, and `ranking.py` puts the plans in order. `spot_ceilings.py`
says up to which price spot is worth it at each place. A provider that does not answer in time holds up no other one:
`background_planning.py` asks it on in a process of its own, so that the next plan has the answer.

What comes out is a list of `Candidate` (`provider/candidate.py`), which the task keeps. Which one is asked next once
a task exists, and what happens to one that has no room, is decided by the supervisor (`supervise/failover.py`).

Imports `bundle`, `provider` and what they import; adapters are passed in. Start with `planning.py`.
"""
