"""A Mithril to rehearse with: auctions, bids and machines behind the real API's requests and replies.

Written after the API's OpenAPI document. `flowlite.testing.cloud.mithril.box` is what a test handles.
"""
