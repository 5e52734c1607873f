"""Hosts reached by SSH as a provider: pools of machines you can log in to, leased to one task at a time."""

from provider_adapters.ssh.provider import SshProvider

__all__ = ["SshProvider"]
