"""The provider `local`: nodes are directories and process groups on this machine. It needs no account, GPU or root."""

from provider_adapters.local.provider import LocalProvider

__all__ = ["LocalProvider"]
