"""What each operation of the fake Mithril does; `shapes.py` has their names, paths and fields.

One module for each kind of thing: `bids.py`, `instances.py`, `volumes.py`, `prices.py`, `reservations.py`,
`users.py`. An operation takes a `Request` of the right shape, checks its meaning, changes the world, and returns
status and body. It is called
with the world's lock held. What an auction decides is in `market.py`, not here. Start with `bids.py`.
"""
