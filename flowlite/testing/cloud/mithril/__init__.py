"""A fake Mithril: auctions, bids and machines behind the requests and replies of the real API.

Written from the API's OpenAPI document. Tests control it through `flowlite.testing.cloud.mithril.box`.
"""
