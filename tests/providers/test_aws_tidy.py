"""What `flow gc` and the background tidying take for over, on EC2, while a launch goes on beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import ConfigError, PermissionRefused
from flowlite.provider import Instance
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.state import clock
from provider_adapters.aws import ending
from provider_adapters.aws.context import Context
from provider_adapters.aws.ending import Ending
from provider_adapters.aws.listing import Listing
from provider_adapters.aws.provider import AwsProvider
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings

exceptions = pytest.importorskip("botocore.exceptions")


@pytest.mark.parametrize(
    ("lag", "listed", "over"),
    [
        # The listing was made before the launch: it says nothing of it.
        (300.0, [], False),
        (300.0, [("i-1", "ended")], False),
        (300.0, [("i-1", "ended"), ("i-2", "running")], False),
        (300.0, [("i-1", "ended"), ("i-2", "ended")], True),
        (0.0, [], True),
    ],
)
def test_a_launch_is_over_when_a_listing_that_could_know_says_so(
    tmp_path: Path, lag: float, listed: list[tuple[str, str]], over: bool
) -> None:
    context = Context(tmp_path, AwsSettings(region=("us-east-1",), listing_lag=lag))
    ledger = context.ledger
    ledger.begin("t1-launch-1", "t1", 2, dict)
    call = ledger.intend("t1-launch-1", "us-east-1/us-east-1a", {})
    ledger.made("t1-launch-1", call.name, ["i-1", "i-2"])
    ledger.note("t1-launch-1", met={})
    Ending(context).tidy("t1", [Instance(name, "t1", state=state) for name, state in listed])
    launch = ledger.read("t1-launch-1")
    assert launch is not None
    assert launch.ended is over


def test_what_is_not_listed_yet_is_no_proof_that_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account of its cost counts on it."""
    context = Context(tmp_path, AwsSettings(region=("us-east-1",)))
    context.ledger.begin("t1-launch-1", "t1", 1, dict)
    parameters = {"price": 1.0, "extras": 0.0, "deadline": "none"}
    call = context.ledger.intend("t1-launch-1", "us-east-1/us-east-1a", parameters)
    context.ledger.made("t1-launch-1", call.name, ["i-1"])
    listing = Listing(context)
    for listed in ([], [Instance("i-1", "t1", data={"token": ""})]):
        monkeypatch.setattr(listing, "_describe_all", lambda *_, found=listed, **__: found)
        (found,) = listing.mine("t1")
        assert (found.id, found.unlisted) == ("i-1", not listed)


def test_what_is_refused_for_all_machines_is_not_asked_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    class Ec2:
        cancel_spot_instance_requests = None

        def terminate_instances(self, **request: Any) -> None:
            asked.append(request["InstanceIds"])
            what = f"arn:aws:ec2:us-east-1:1:instance/{request['InstanceIds'][0]}"
            said = {"Code": "UnauthorizedOperation", "Message": f"You may not end {what}"}
            raise exceptions.ClientError({"Error": said}, "TerminateInstances")

    monkeypatch.setattr(Clients, "__call__", lambda *_, **__: Ec2())
    names = [f"i-{number:017x}" for number in range(64)]
    machines = [Instance(name, "t1", data={"region": "us-east-1"}) for name in names]
    with pytest.raises(PermissionRefused, match=names[0]):
        Ending(Context(tmp_path, AwsSettings(region=("us-east-1",)))).end(machines)
    assert asked[1] == names[1:]
    assert len(asked) < 10


def test_a_launch_without_machines_is_closed_only_when_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's list of live tasks may have been made before it. What is only tidied has no such list."""
    monkeypatch.setattr(ending, "all_regions", lambda context: [])
    monkeypatch.setattr(Ending, "_remove_strays", lambda *_, **__: [])
    context = Context(tmp_path, AwsSettings(region=("us-east-1",)))
    launch = context.ledger.begin("t1-launch-1", "t1", 1, dict)

    def is_closed_after(seconds: float, clean: Callable[[Ending], object]) -> bool:
        with monkeypatch.context() as later:
            later.setattr(clock, "now", lambda: launch.at + seconds)
            clean(Ending(context))
        found = context.ledger.read(launch.token)
        return found is None or found.ended

    assert not is_closed_after(1.0, lambda end: end.sweep([], dry_run=False))
    assert not is_closed_after(60.0, lambda end: end.sweep(["t1"], dry_run=False))
    assert not is_closed_after(60.0, lambda end: end.sweep([], dry_run=True))
    assert not is_closed_after(86400.0, lambda end: end.tidy_all([]))
    assert is_closed_after(60.0, lambda end: end.sweep([], dry_run=False))
    launch = context.ledger.begin("t2-launch-1", "t2", 1, dict)
    assert is_closed_after(8 * 86400.0, lambda end: end.tidy_all([]))


def test_a_profile_that_does_not_exist_is_said_where_no_region_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flow gc` would otherwise look nowhere, and say nothing."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    (tmp_path / "aws" / "launches").mkdir(parents=True)
    (tmp_path / "config").write_text("[default]\n")
    table = {"profile": "nobody", "shared_config_file": str(tmp_path / "config")}
    provider = AwsProvider(tmp_path, ProviderSettings("aws", table, {}))
    with pytest.raises(ConfigError, match="nobody"):
        provider.list_instances()
