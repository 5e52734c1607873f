"""This machine as a provider: no account, no GPU needed, no root. A node is a directory and a group of processes."""

from provider_adapters.local.provider import LocalProvider

__all__ = ["LocalProvider"]
