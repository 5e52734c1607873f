"""What a task costs, what it may cost, and how prices are shown.

`cost.py` is the only module that adds up money. `billing.py` takes the launch time, end time and price of each
machine from the provider's listing, and what that lacks from our own clock. `caps.py` turns `max_cost` into a time
limit that the nodes enforce themselves, with time reserved for the teardown; the same for `max_run_time_hours`.
`price_text.py` says a plan in words.

What a plan may cost is compared with the caps before anything is launched (`api/candidates/capped_plan.py`). If a cap
was exceeded, start with `caps.py`; if the price was wrong, with the adapter's listing.

Pure but for what `billing.py` reads. Imports `record`, and values of `provider` and `state`.
"""
