"""Machines of Mithril: spot bids of its auctions, through its REST API."""

from provider_adapters.mithril.provider import MithrilProvider

__all__ = ["MithrilProvider"]
