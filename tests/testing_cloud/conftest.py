"""A client of the box's EC2, and gangs at its Mithril."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.testing_cloud.mithril_gangs import submit as submit

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox


@pytest.fixture
def ec2(box: CloudInABox) -> Any:
    """boto3's, which repeats nothing by itself."""
    from tests.testing_cloud.ec2_client import client

    return client()
