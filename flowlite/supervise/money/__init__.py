"""What a task costs, what it may cost, and how prices read.

When a machine was launched and ended, and at which price, is taken from the provider's listing. `max_cost` becomes a
time limit that the nodes hold themselves, with room left for the teardown.
"""
