"""The provider `aws`: EC2 instances. A gang is in one zone, and its machines end even without a client.

`planning.py` chooses type, zones, image and price (`catalog/` knows the types). `launching.py` launches the gang with
one call that creates all machines in one zone or none, and then follows them while they boot, without blocking
(`booting.py`). `listing.py` combines what EC2 lists by our tags with what the ledger knows and EC2 does not show yet.
`ending.py` ends all machines of a region with one call. `network.py` has subnets and security groups,
and keeps access when this machine's address changes. `storage/` attaches volumes.

Requests are made by pure functions (`requests.py`), sent through `service.py` with clients of `session.py`, and their
errors explained by `errors.py`. `policy.py` is the smallest IAM policy with which all this works.

What it has in common with other clouds is `provider_adapters/rented`. Start with `launching.py`.
"""

from provider_adapters.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
