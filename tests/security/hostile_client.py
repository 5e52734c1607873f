"""What a client or a supervisor does with a hostile answer, one function each; run as a process of its own.

    python -m tests.security.hostile_client CASE ARGUMENT...

It prints one line of JSON: what came of it, and the most memory that the process ever had, in MiB.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowlite.errors import FlowError

CASES: dict[str, Callable[..., str]] = {}


def case(function: Callable[..., str]) -> Callable[..., str]:
    CASES[function.__name__] = function
    return function


def _ssh(config: str) -> Any:
    from flowlite.connect.ssh.connection import SshConnection, resolve_target

    return SshConnection(resolve_target("box", Path(config)))


def _refused(do: Callable[[], Any]) -> str:
    """The error that it ends with."""
    try:
        do()
    except (FlowError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was believed")


# Over SSH


@case
def ssh_run(config: str) -> str:
    with _ssh(config) as connection:
        return _refused(lambda: connection.run(["true"], timeout=60))


@case
def ssh_slow_run(config: str) -> str:
    """It always says something, so it never falls silent; the time-out counts all the same."""
    with _ssh(config) as connection:
        return _refused(lambda: connection.run(["true"], timeout=2))


@case
def ssh_read(config: str) -> str:
    with _ssh(config) as connection:
        return _refused(lambda: connection.read_all("/a/file"))


@case
def ssh_put(config: str) -> str:
    with _ssh(config) as connection:
        return _refused(lambda: connection.put(os.urandom(400_000), "/a/file"))


@case
def ssh_courier(config: str) -> str:
    with _ssh(config) as connection:
        return _refused(lambda: connection.ask({"do": "hello"}, timeout=60, start=["courier"]))


@case
def hosts_check(config: str) -> str:
    home = Path(os.environ["FLOW_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[ssh]\nconfig_file = "{config}"\n[ssh.pools.lab]\nhosts = ["box"]\n'
    )
    return _flow("hosts", "check")


# A node's files and processes


def _node(directory: str) -> Any:
    from flowlite.connect.local import LocalConnection
    from flowlite.provider import Instance, NodeSettings
    from flowlite.supervise.attempt.node_handle import Node

    class Here:
        """A provider whose node is this directory."""

        def list_instances(self, task_id: str | None = None) -> list[Instance]:
            return [instance]

        def connect(self, instance: Instance) -> LocalConnection:
            return LocalConnection()

    instance = Instance("i", "t", state="running")
    provider: Any = Here()
    return Node(provider, instance, NodeSettings(home=directory, python=sys.executable), 0, 1)


@case
def probe(directory: str) -> str:
    return str(_node(directory).probe().why)


@case
def report(directory: str) -> str:
    return repr(_node(directory).report())


@case
def agent_log(directory: str) -> str:
    from flowlite.output.redact import Mask

    kept = Path(directory, "kept.log")
    _node(directory).get_log("agent.log", kept, Mask(["a-secret-of-many-characters"]))
    return f"{kept.stat().st_size} bytes: {kept.read_bytes()[:40]!r}"


@case
def on_the_node(*homes: str) -> str:
    """What the lease holder and the commands that look at a task read on a node, in their own processes there."""
    from flowlite.node.config.agent_config import ConfigFault
    from flowlite.node.host_lease import cleanup
    from flowlite.node.inspect import exec as run_there
    from flowlite.node.inspect import look, metrics
    from flowlite.node.outputs import listing
    from flowlite.node.system import stack_dump

    for directory in homes:
        attempt = str(Path(directory, "a1"))
        cleanup.agent_lives(directory)
        run_there.latest_entry(directory)
        stack_dump.living_workers(attempt)
        for asked in (look, metrics):
            with contextlib.suppress(OSError, ConfigFault):
                asked.main([directory])
        with contextlib.suppress(OSError, ValueError):
            listing._workdir(directory)
    return f"looked at {len(homes)}"


# Through a step


def _step(script: str) -> Any:
    from flowlite.connect.local import LocalConnection
    from flowlite.connect.step.connection import StepConnection

    prefix = [sys.executable, script]
    return StepConnection(LocalConnection(), prefix, label="node n1", python="-", program="-")


@case
def step_run(script: str) -> str:
    with _step(script) as connection:
        return _refused(lambda: connection.run(["true"], timeout=60))


@case
def step_idle(script: str) -> str:
    """Somebody asks for one thing and does not take what comes, for a while."""
    with _step(script) as connection:
        reading = connection.read("/a/file")

        def all_of_it() -> None:
            for _ in reading:
                time.sleep(3.0 if not waited else 0.0)
                waited.append(True)

        waited: list[bool] = []
        return _refused(all_of_it)


# Logs and results


def _flow(*words: str) -> str:
    from flowlite.cli import main

    counted = _Counted()
    with contextlib.redirect_stdout(counted), contextlib.redirect_stderr(counted):
        code = main(words)
    return f"{code}: {counted.size} characters, {counted.end}"


class _Counted(io.StringIO):
    """Counts what is written, and keeps the end of it."""

    size = 0
    end = ""

    def write(self, text: str) -> int:
        self.size += len(text)
        self.end = (self.end + text[-2000:])[-2000:]
        return len(text)


@case
def flow(*words: str) -> str:
    return _flow(*words)


@case
def ssh_lines(size: str) -> str:
    """`flow ssh --node all` with one line that has no end."""
    from flowlite.cli.commands.ssh import _Lines
    from flowlite.connect.local import LocalConnection

    counted = _Counted()
    lines = _Lines(0, counted)
    script = "head -c $1 /dev/zero | tr '\\0' x"
    LocalConnection().follow(
        ["sh", "-c", script, "sh", size], lambda stream, block: lines.take(block)
    )
    lines.end()
    return f"{counted.size} characters"


# A leader


@case
def leader_events(count: str) -> str:
    """A leader that reports without end, each time as much as fits into a frame."""
    from flowlite.supervise.attempt.leader_events import LeaderEventFilter
    from flowlite.supervise.process.journal import Journal
    from tests.tasks_made_by_hand import HandMade

    made = HandMade(nodes=2, per_node=2)
    record = made.store.get_task(made.id)
    journal, heard = Journal(made.store, made.lease, record), LeaderEventFilter(["i-0", "i-1"], 4)
    for number in range(int(count)):
        text = "x" * 900_000
        worker = {"kind": "worker", "seq": number, "time": 1e9, "code": 1, "sizes": {}}
        for event in (
            {"kind": "warning", "seq": number, "time": 1e9, "text": text, "more": [text]},
            {**worker, "rank": number, "node": 0, "failure": {"kind": "exit", "message": text}},
            {**worker, "rank": number % 4, "node": number % 4 // 2, "tail": [text] * 300},
        ):
            taken = heard.event(event)
            if taken is not None:
                journal.gang_event(taken)
    journal.flush()
    events = made.store.events(made.id)
    size = sum(len(event.text) + len(str(event.data)) for event in events)
    assert size < 24 << 20, size
    return f"{len(events)} events, the last: {events[-1].text[:80]}"


# A cloud


@case
def mithril(url: str) -> str:
    from flowlite.settings.credentials import Key
    from provider_adapters.mithril.rest.client import MithrilApi

    api = MithrilApi(url, Key("fkey_x", "X"), sleep=lambda seconds: None)
    return _refused(lambda: api.get("/v2/things"))


@case
def mithril_pages(url: str) -> str:
    from flowlite.settings.credentials import Key
    from provider_adapters.mithril.rest.client import MithrilApi

    api = MithrilApi(url, Key("fkey_x", "X"), sleep=lambda seconds: None)
    return _refused(lambda: api.pages("/v2/things", {}))


def _aws(service: str, url: str) -> Any:
    from provider_adapters.aws.session import Clients
    from provider_adapters.aws.settings import AwsSettings

    os.environ |= {"AWS_ACCESS_KEY_ID": "X", "AWS_SECRET_ACCESS_KEY": "X"}
    return Clients(AwsSettings(endpoint_url=url))(service, "us-east-1")


@case
def aws(url: str) -> str:
    from provider_adapters.aws.errors import explained

    client = _aws("ec2", url)
    try:
        with explained("ec2:DescribeInstances"):
            return f"instances: {client.describe_instances().get('Reservations')}"
    except FlowError as error:
        return str(error)


@case
def aws_prices(url: str) -> str:
    """A service that answers in JSON."""
    from provider_adapters.aws.errors import explained

    client = _aws("pricing", url)

    def ask() -> None:
        with explained("pricing:GetProducts"):
            client.get_products(ServiceCode="AmazonEC2")

    return _refused(ask)


@case
def aws_pages(url: str) -> str:
    """All instances of a region, over all pages."""
    from provider_adapters.aws import instances, pages
    from provider_adapters.aws.errors import explained

    client = _aws("ec2", url)

    def ask() -> None:
        with explained("ec2:DescribeInstances"):
            instances.of_reservations(pages.pages(client, "describe_instances"), "us-east-1")

    return _refused(ask)


@case
def aws_role(url: str, directory: str) -> str:
    """A profile that assumes a role, for a bucket and for the provider; STS is at the URL."""
    from flowlite.bucket_credentials import account_of
    from provider_adapters.aws.errors import explained
    from provider_adapters.aws.session import Clients
    from provider_adapters.aws.settings import AwsSettings

    config = Path(directory, "config")
    config.write_text(
        "[profile base]\naws_access_key_id = X\naws_secret_access_key = X\n"
        "[profile lab]\nrole_arn = arn:aws:iam::123456789012:role/lab\nsource_profile = base\nregion = us-east-1\n"
    )
    os.environ |= {"AWS_CONFIG_FILE": str(config), "AWS_ENDPOINT_URL_STS": url}
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(Path(directory, "none"))
    clients = Clients(AwsSettings(profile="lab", shared_config_file=str(config)))

    def ask() -> None:
        with explained("ec2:DescribeInstances"):
            clients("ec2", "us-east-1").describe_instances()

    return f"{_refused(lambda: account_of('lab'))} | {_refused(ask)}"


@case
def aws_metadata(url: str) -> str:
    """What answers in the place of a machine's metadata service."""
    from provider_adapters.aws.session import Clients
    from provider_adapters.aws.settings import AwsSettings

    os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = url
    return _refused(lambda: Clients(AwsSettings())("ec2", "us-east-1"))


@case
def s3_list(url: str) -> str:
    """A bucket's listing."""
    from flowlite.node.s3.client import Store

    store = Store.of({"url": "s3://bucket", "endpoint_url": url, "region": "us-east-1"})
    return _refused(lambda: list(store.list()))


@case
def s3_uploads(url: str) -> str:
    """The uploads to a bucket that were never completed."""
    from flowlite.node.s3.client import Store
    from flowlite.node.s3.multipart_upload import MultipartUpload

    store = Store.of({"url": "s3://bucket", "endpoint_url": url, "region": "us-east-1"})

    def request(method: str, key: str, query: Any, body: bytes) -> Any:
        return store.request(method, key, query, body=body)

    return _refused(lambda: MultipartUpload.unfinished(request, ""))


def main() -> None:
    name, *arguments = sys.argv[1:]
    began = time.monotonic()
    told = CASES[name](*arguments)
    status = Path("/proc/self/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"told": told, "mib": int(peak) / 1024, "seconds": seconds}))


if __name__ == "__main__":
    main()
    # Threads of a connection to somebody who never stops must not hold it back.
    sys.stdout.flush()
    os._exit(0)
