"""Listings of AWS in pages, bounded in pages, bytes and time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provider_adapters.aws.errors import NoAnswer
from provider_adapters.rented.page_bounds import MOST_PAGES, PageBounds

_MOST_BYTES = 32 << 20
# A machine with 32 network interfaces takes 60 kB of DescribeInstances, and one answer may have 4 MiB.
PAGE = 50
"""Instances that are asked for in one page of DescribeInstances."""
MOST_INSTANCES = PAGE * MOST_PAGES
"""Instances in all pages, whatever is in each."""
# The names of the token in the services that we list from.
_TOKENS = ("NextToken", "NextMarker")


def pages(client: Any, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    """Yields the pages of a listing.

    Args:
        client: A boto3 client.
        operation: As a method of the client: "describe_instances".
        parameters: Of the operation, or `PaginationConfig`.

    Raises:
        NoAnswer: They do not end.
    """
    bounds = PageBounds(_MOST_BYTES)
    for page in client.get_paginator(operation).paginate(**parameters):
        token = next((str(page[name]) for name in _TOKENS if page.get(name)), "")
        headers = page.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        excess = bounds.excess(int(headers.get("content-length", 0)), token)
        if excess:
            raise endless(operation, excess)
        yield page


def endless(operation: str, excess: str) -> NoAnswer:
    """The error for a listing that is given up."""
    return NoAnswer(
        f"the pages of {operation} do not end: {excess}. This is no answer of AWS; see what answers in its place "
        "([aws] endpoint_url, AWS_ENDPOINT_URL, HTTPS_PROXY)",
        "EndlessListing",
    )


def entries(client: Any, operation: str, key: str, **parameters: Any) -> list[Any]:
    """The entries under a key of a listing, over all its pages. Raises NoAnswer."""
    return [each for page in pages(client, operation, **parameters) for each in page[key]]
