"""The provider `mithril`: machines from spot bids in Mithril's auctions, through its REST API.

A gang is one bid, which gets all machines or none. `launching.py` places it once and checks until it is ready;
`bid_submission.py` makes sure that it is placed exactly once, even if the answer is lost. A gang that may have fewer
machines is several bids (`several_bids.py`). `listing.py` lists machines, and also bids that may get some at any
time. `ending.py` ends bids, which ends the bill; `nodekey.py` lets machines do so by themselves when no client does.
`costs.py` reads the cost from Mithril's own history, to the second.

`planning.py`, `markets.py` and `offers.py` say what there is and at which price. `volumes.py` and `disks.py` are
about storage, `account.py` about project and keys. `rest/` is the only room that sends requests.

What it has in common with other clouds is `provider_adapters/rented`. Start with `launching.py`.
"""

from provider_adapters.mithril.provider import MithrilProvider

__all__ = ["MithrilProvider"]
