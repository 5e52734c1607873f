"""Volumes in several regions of an AWS account: found, and deleted where they are."""

from __future__ import annotations

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import ConfigError
from tests.providers.aws_client import Client

pytestmark = pytest.mark.timeout(180)


def test_volumes_are_found_where_they_were_made_and_deleted_there(aws: Client) -> None:
    """They are charged until somebody deletes them, whatever the region of the settings is now."""
    aws.settings('region = "us-west-2"')
    adapter("aws").create_volume("data", 5, "block")
    adapter("aws").create_volume("models", None, "file")
    aws.settings('region = "us-east-1"')
    adapter("aws").create_volume("data", 5, "block")
    found = [(each.name, each.region) for each in adapter("aws").list_volumes()]
    assert sorted(found) == [
        ("data", "us-east-1a"),
        ("data", "us-west-2a"),
        ("models", "us-west-2"),
    ]
    with pytest.raises(ConfigError, match=r"several.*us-east-1.*us-west-2.*give the id of one"):
        adapter("aws").delete_volume("data")
    adapter("aws").delete_volume("models")
    for each in adapter("aws").list_volumes():
        adapter("aws").delete_volume(each.location)
    assert adapter("aws").list_volumes() == []


def test_a_volume_is_made_where_it_was_asked_for(aws: Client) -> None:
    aws.settings('region = "us-east-1"\nzones = ["us-east-1b"]')
    provider = adapter("aws")
    where = {"there": "us-west-2", "zone": "us-west-2b", "here": None}
    made = {name: provider.create_volume(name, 5, "block", each) for name, each in where.items()}
    assert {name: each.region for name, each in made.items()} == {
        "there": "us-west-2a",
        "zone": "us-west-2b",
        "here": "us-east-1b",
    }
    assert provider.create_volume("files", None, "file", "us-west-2").region == "us-west-2"
    with pytest.raises(ConfigError, match=r"us-west-2b is a zone.*give us-west-2"):
        provider.create_volume("more", None, "file", "us-west-2b")
    with pytest.raises(ConfigError, match="'nowhere' is no region of AWS"):
        provider.create_volume("more", None, "file", "nowhere")
    for name in (*where, "files"):
        provider.delete_volume(name)
    assert provider.list_volumes() == []


def test_a_region_that_is_denied_does_not_hide_the_volumes_of_others(aws: Client) -> None:
    aws.settings('region = "us-east-1"')
    adapter("aws").create_volume("data", 5, "block")
    match = {"Region": "eu-west-1"}
    aws.box.aws.fault("DescribeVolumes", code="UnauthorizedOperation", times=-1, match=match)
    (aws.home / "aws" / "volumes" / "regions" / "eu-west-1").touch()
    provider = adapter("aws")
    assert [each.name for each in provider.list_volumes()] == ["data"]
    (said,) = provider.not_looked_at()
    assert said.startswith("eu-west-1: ")
