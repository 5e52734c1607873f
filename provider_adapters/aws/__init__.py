"""Nodes on AWS EC2: whole gangs in one zone, with an end that is built into the machines."""

from provider_adapters.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
