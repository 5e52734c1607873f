"""One user of EC2 in the box: launches as the supervisor does, and looks at what is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.spec import TaskConfig
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually

SECONDS = 90.0
ZONES = [f"us-east-1{letter}" for letter in "abcdef"]
TYPE = "c7i.large"


class Client:
    """One FLOW_HOME, and what it asks of EC2."""

    def __init__(self, box: CloudInABox, home: Path) -> None:
        self.box = box
        self.home = home

    def settings(self, text: str) -> None:
        (self.home / "config.toml").write_text(f"[aws]\n{text}\n")

    def intent(self, task: str = "t1", number: int = 1, **options: Any) -> LaunchIntent:
        given = {"command": ["true"], "num_instances": 2, "provider": "aws", **options}
        plan = adapter("aws").plan(TaskConfig(**given))
        return LaunchIntent(f"{task}-launch-{number}", task, plan.num_instances, plan.to_json())

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """As the supervisor does, until all answer or it is refused."""
        provider = adapter("aws")

        def launched() -> list[Instance] | None:
            try:
                return provider.launch(intent)
            except (CapacityUnavailable, LaunchPending):
                return None

        return eventually(launched, timeout=SECONDS, every=0.1, what="launched")

    def waiting(self, intent: LaunchIntent, words: str) -> None:
        """Asks until EC2 has answered, and the launch waits for something else."""

        def waits() -> bool:
            with pytest.raises(LaunchPending) as caught:
                adapter("aws").launch(intent)
            return words in str(caught.value)

        eventually(waits, timeout=SECONDS, every=0.1, what=words)

    def refused(self, intent: LaunchIntent) -> ProviderError:
        """The refusal of a launch. As the supervisor does, it asks again while EC2 has not answered."""

        def refusal() -> ProviderError | None:
            try:
                found = adapter("aws").launch(intent)
            except LaunchPending:
                return None
            except ProviderError as error:
                return error
            raise AssertionError(f"it was launched: {found}")

        return eventually(refusal, timeout=SECONDS, every=0.1, what="refused")

    def end(self, task: str = "t1") -> None:
        """As the supervisor does, until the listing has nothing; then nothing at all may be left.

        EC2 may have failed to remove a group: the next look removes it.
        """
        self.end_machines(task)
        assert self.alive() == []

        def nothing_left() -> bool:
            adapter("aws").list_instances(task)
            tagged = self.box.aws.tagged("flowlite:task", task)
            return "security groups" not in tagged and not any(self.box.aws.leftovers().values())

        eventually(nothing_left, timeout=SECONDS, every=0.2, what=str(self.box.aws.leftovers()))

    def end_machines(self, task: str = "t1") -> None:
        """The same, whatever is left beside the machines."""

        def ended() -> bool:
            provider = adapter("aws")
            left = [each for each in provider.list_instances(task) if each.state != "ended"]
            provider.terminate(left)
            return not left

        eventually(ended, timeout=SECONDS, every=0.1, what="ended")

    def alive(self) -> list[dict[str, Any]]:
        found = self.box.aws.instances()
        return [each for each in found if each["state"] not in ("terminated", "shutting-down")]

    def launches(self) -> dict[str, dict[str, Any]]:
        """The launches that were asked for, by token: the last request of each, in the order of the first ones."""
        return {each["ClientToken"]: each for each in self.calls("RunInstances")}

    def calls(self, action: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.box.aws.calls if name == action]


# What EC2 has, as the first test was told: asking costs seconds, and never changes in the box.
CATALOG: dict[str, Any] = {}
LASTING = ("cpus", "gpus", "zones", "prices")


@contextmanager
def client_of(box: CloudInABox, home: Path) -> Iterator[Client]:
    """A client with a FLOW_HOME that knows what the tests before were told of EC2's types."""
    made = Client(box, home)
    made.settings('lease = "10m"')
    # Tests of a single call ask for its effect at once; those of whole tasks have EC2 as it is.
    box.aws.timing(unknown=0.0, counted=0.0)
    directory = home / "aws" / "catalog"
    directory.mkdir(parents=True)
    for name, parts in CATALOG.items():
        (directory / name).write_text(json.dumps(parts))
    yield made
    for path in directory.iterdir():
        found = json.loads(path.read_bytes())
        kept = CATALOG.setdefault(path.name, {})
        kept |= {key: value for key, value in found.items() if key in LASTING}


def groups(box: CloudInABox) -> list[str]:
    """Security groups of tasks, as EC2 has them."""
    return groups_in("us-east-1")


def groups_in(region: str) -> list[str]:
    """The same in a region."""
    return [each["GroupName"] for each in groups_made(region)]


def groups_made(region: str) -> list[dict[str, Any]]:
    """The same as EC2 lists them. Asks as often as it takes, since the box may inject faults."""
    import boto3
    from botocore.config import Config

    ec2 = boto3.client("ec2", region, config=Config(retries={"total_max_attempts": 10}))
    told = ec2.describe_security_groups()["SecurityGroups"]
    return [each for each in told if each["GroupName"].startswith("flowlite-")]
