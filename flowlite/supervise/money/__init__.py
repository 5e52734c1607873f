"""What a task costs, what it may cost, and how prices are shown.

Launch times, end times and prices of machines come from the provider's listing. `max_cost` becomes a time limit that
the nodes enforce themselves, with time reserved for the teardown.
"""
