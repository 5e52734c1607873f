"""Where a task may run: each place that would do is planned by its provider, compared with the caps, and ranked.

`alternatives.py` gives the single values that the options of a task allow, `capped_plan.py` makes the plan for one of
them, `planning.py` does so for all of them side by side, and `ranking.py` puts the plans in order.

Imports `bundle`, `provider` and what they import; adapters are passed in.
"""
