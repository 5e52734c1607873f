"""A fake Mithril: auctions, bids and machines behind the requests and replies of the real API.

`shapes.py` has the facts of the API's OpenAPI document: operations, and the schemas of requests and replies. A request
that is not of these shapes is refused as the API does, and a reply of the fake that is not becomes a status 500.
`operations/` has what each operation does. `market.py` runs the auctions, `fleet.py` the machines of a bid, and
`world.py` is all state, under one lock. `ground.py` says what instances run on: real machines, or none
(`PaperMithril`, for quick tests). `books.py` computes the bill by itself.

Tests control it through `box.py`: prices, capacity, preemption, lost answers. Start with `service.py`.
"""
