"""The provider `aws`: EC2 instances. A gang is in one zone, and its machines end themselves if the client is gone."""

from provider_adapters.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
