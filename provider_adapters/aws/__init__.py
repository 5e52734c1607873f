"""The provider `aws`: EC2 instances. A gang is in one zone, and its machines end even without a client."""

from provider_adapters.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
