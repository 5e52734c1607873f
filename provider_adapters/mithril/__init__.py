"""The provider `mithril`: machines from spot bids in Mithril's auctions, through its REST API."""

from provider_adapters.mithril.provider import MithrilProvider

__all__ = ["MithrilProvider"]
