"""Tasks on EC2 in the box with credentials that are refused, or of another account: of a session, or a shell."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.connect import botocore_credential_process
from flowlite.errors import CapacityUnavailable, PermissionRefused
from flowlite.provider import Instance, LaunchPending, Provider, get_provider
from flowlite.state import clock
from flowlite.testing.cloud import CloudInABox
from provider_adapters.aws import booting, session
from tests.flow_commands.run import flow
from tests.helpers import eventually, process_alive
from tests.providers.aws_client import TYPE, ZONES, Client, groups
from tests.providers.test_aws_gang import SECONDS, Laptop

# Another fault than refused credentials makes a supervisor try again, and later.
pytestmark = [pytest.mark.timeout(400), pytest.mark.no_random_faults]
LOOP = "i=0; while [ ! -e /tmp/flow-go ]; do i=$((i+1)); echo $i; sleep 0.5; done; echo last"


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home)


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
REFUSED = {"AWS_SECRET_ACCESS_KEY": "expired"}


def refused(
    laptop: Laptop, *words: str, credentials: Mapping[str, str] = REFUSED
) -> subprocess.CompletedProcess[str]:
    """`flow` in a shell whose secret key is none, or with other credentials."""
    environment = {**laptop.environment, **credentials}
    return flow(words, env=environment, cwd=laptop.home, timeout=SECONDS)


def supervisor(laptop: Laptop) -> int:
    """The process id of the noted supervisor."""
    noted = next(laptop.home.glob("tasks/*/supervisor.json"))
    return int(json.loads(noted.read_bytes())["pid"])


@pytest.mark.parametrize(
    ("elsewhere", "words"),
    [(False, ("AuthFailure", "are refused")), (True, ("210987654321", "launched in 123456789012"))],
    ids=["refused", "of another account"],
)
def test_a_command_with_other_credentials_does_no_harm_to_a_task_that_runs(
    laptop: Laptop, elsewhere: bool, words: tuple[str, str]
) -> None:
    # What EC2 does not list has ended.
    (laptop.home / "config.toml").write_text('[aws]\nlisting_lag = "1s"\n')
    credentials = laptop.box.aws.environment_elsewhere() if elsewhere else REFUSED
    run = ["run", "--provider", "aws", "-d", "--name", "hz", "--max-run-time-hours", "1"]
    laptop.flow(*run, "--", "sh", "-c", LOOP)

    def status() -> str:
        return str(laptop.json("status", "hz")["status"])

    eventually(lambda: status() == "running", timeout=SECONDS, every=0.5)
    first = supervisor(laptop)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not process_alive(first))
    refused(laptop, "status", "hz", credentials=credentials)
    eventually(lambda: supervisor(laptop) != first, timeout=SECONDS, every=0.2)

    def reason() -> str:
        return str(laptop.json("status", "hz")["reason"])

    said = eventually(lambda: words[0] in (told := reason()) and told, timeout=SECONDS)
    assert words[1] in said
    assert status() == "running"
    (machine,) = laptop.box.aws.instances()
    laptop.flow("ssh", "hz", "-c", "touch /tmp/flow-go")
    # Its ranks end, and a supervisor with the credentials of these commands ends the machine.
    eventually(lambda: status() == "completed", timeout=SECONDS, every=0.5)
    lines = [line.split()[-1] for line in laptop.flow("logs", "hz").splitlines()]
    assert lines == [*map(str, range(1, len(lines))), "last"]
    assert laptop.box.aws.instances()[0]["id"] == machine["id"]
    laptop.assert_nothing_left()


def test_machines_are_not_taken_for_gone_with_credentials_of_another_account(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.settings('listing_lag = "1s"')
    found = aws.launch(aws.intent())
    launched = clock.now()
    eventually(lambda: clock.now() - launched > 1.5)
    with monkeypatch.context() as shell:
        for name, value in aws.box.aws.environment_elsewhere().items():
            shell.setenv(name, value)
        with pytest.raises(PermissionRefused, match=r"210987654321.* task t1 .* in 123456789012"):
            adapter("aws").list_instances("t1")
        with pytest.raises(PermissionRefused, match=r"210987654321.* task t1 .* in 123456789012"):
            adapter("aws").terminate(found)
        # `flow gc` says so, and goes on with what there is in the account.
        provider = adapter("aws")
        assert provider.list_instances() == []
        assert provider.sweep([]) == []
        (told,) = provider.not_looked_at()
        assert "launched in 123456789012" in told
    assert len(adapter("aws").list_instances("t1")) == 2
    aws.end()


def test_a_program_that_gives_no_credentials_any_more_refuses_them(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, session = aws.box.aws.environment(), tmp_path / "session"
    given = {
        "Version": 1,
        "AccessKeyId": keys["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": keys["AWS_SECRET_ACCESS_KEY"],
    }
    # They hold for so short a time that they are asked for again by each call.
    given["Expiration"] = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    session.write_text(json.dumps(given))
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = cat {session}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in KEYS:
        monkeypatch.delenv(name)
    provider = adapter("aws")
    assert provider.others() == []
    session.unlink()
    with pytest.raises(PermissionRefused, match=r"No such file[^\n]* such as credential_process"):
        provider.others()


@pytest.mark.parametrize("of_another", [False, True])
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("true", "printed something else"),
        ("echo please log in", "printed something else"),
        ("/nowhere/vault", r"/nowhere/vault cannot be started: No such file"),
        ("sleep 1000", "not ended within 1 s"),
        ("sh -c 'sleep 1000; true'", "not ended within 1 s"),
        ("sh -c 'head -c 300 /dev/urandom >&2; exit 1'", "from custom-process"),
    ],
)
def test_a_program_that_gives_no_credentials_is_told_from_a_defect(
    aws: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    said: str,
    of_another: bool,
) -> None:
    monkeypatch.setattr(botocore_credential_process, "_SECONDS", 1.0)
    own = f"credential_process = {program}\n"
    role = "role_arn = arn:aws:iam::123456789012:role/research\nsource_profile = base\n"
    profiles = f"[default]\n{role}[profile base]\n{own}" if of_another else f"[default]\n{own}"
    (tmp_path / "config").write_text(profiles)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in KEYS:
        monkeypatch.delenv(name)
    with pytest.raises(PermissionRefused, match=said):
        adapter("aws").list_instances("t1")


def test_a_session_that_is_renewed_in_the_file_is_taken_up(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor runs for longer than a session of some hours, which the user's tools write to the file anew."""
    keys, file = aws.box.aws.environment(), tmp_path / "credentials"

    def log_in(secret: str) -> None:
        lines = ["[default]", f"aws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}"]
        beside = tmp_path / "new"
        beside.write_text("\n".join([*lines, f"aws_secret_access_key = {secret}", ""]))
        beside.replace(file)

    log_in("expired")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in KEYS:
        monkeypatch.delenv(name)
    provider = adapter("aws")
    for _ in range(2):
        with pytest.raises(PermissionRefused, match="AuthFailure"):
            provider.list_instances("t1")
    log_in(keys["AWS_SECRET_ACCESS_KEY"])
    assert provider.list_instances("t1") == []
    # Such as that of the next attempt, which is asked for once.
    intent = aws.intent()
    aws.box.aws.fault("RunInstances", code="ExpiredToken", status=403)
    log_in(keys["AWS_SECRET_ACCESS_KEY"])
    with suppress(LaunchPending):
        provider.launch(intent)
    assert len(aws.launch(intent)) == 2
    assert [each["state"] for each in aws.box.aws.instances()] == ["running"] * 2
    aws.end()


class Sts(BaseHTTPRequestHandler):
    """Gives the box's credentials to who has a code. It lists the codes."""

    codes: ClassVar[list[str]] = []
    given: ClassVar[dict[str, str]] = {}

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.codes.extend(asked["TokenCode"])
        ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{self.given['AWS_ACCESS_KEY_ID']}</AccessKeyId>"
            f"<SecretAccessKey>{self.given['AWS_SECRET_ACCESS_KEY']}</SecretAccessKey>"
            f"<SessionToken>token</SessionToken><Expiration>{ends}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def role_with_mfa(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Sts]]:
    """A default profile with a role that wants a code."""
    monkeypatch.setattr(Sts, "codes", [])
    monkeypatch.setattr(Sts, "given", aws.box.aws.environment())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "config").write_text(
        "[default]\nrole_arn = arn:aws:iam::123456789012:role/research\nsource_profile = base\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/me\n"
        "[profile base]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in KEYS:
        monkeypatch.delenv(name)
    yield Sts
    server.shutdown()
    server.server_close()


def test_a_code_is_asked_for_once_at_a_terminal(
    aws: Client, role_with_mfa: type[Sts], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a supervisor, which has none, takes what was given for it."""

    def no_terminal(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", no_terminal)

    def process() -> Provider:
        return get_provider(aws.home, settings_here("aws"))

    nobodys = process()
    with pytest.raises(PermissionRefused, match=r"no terminal to ask for a code.*mfa_serial"):
        nobodys.list_instances("t1")
    with pytest.raises(PermissionRefused, match=r"MFA token required.* at a terminal"):
        nobodys.list_instances("t1")
    with monkeypatch.context() as terminal:
        terminal.setattr(getpass, "getpass", lambda prompt: "123456")
        assert process().others() == []
    supervisors = process()
    for _ in range(2):
        assert supervisors.others() == []
    assert role_with_mfa.codes == ["123456"]
    (kept,) = (tmp_path / ".aws" / "cli" / "cache").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    # What is kept anew is taken, once the one before is refused.
    aws.box.aws.fault("DescribeInstances", code="ExpiredToken", status=403, times=2)
    with pytest.raises(PermissionRefused, match="ExpiredToken"):
        supervisors.list_instances("t1")
    kept.write_text(kept.read_text())
    assert supervisors.list_instances("t1") == []
    # A file that was cut off is none.
    kept.write_text("{")
    with pytest.raises(PermissionRefused, match="mfa_serial"):
        process().list_instances("t1")


@pytest.mark.parametrize("fault", ["ExpiredToken", "Unavailable"])
def test_machines_that_boot_are_reached_without_aws(
    aws: Client, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(session, "_TRIES", 1)
    monkeypatch.setattr(booting, "_STILL_THERE_SECONDS", 0.5)
    aws.box.aws.timing(boot=6.0)
    intent, supervisors = aws.intent(), adapter("aws")

    def launched(words: str = "") -> list[Instance] | None:
        try:
            return supervisors.launch(intent)
        except LaunchPending as error:
            if words and words in str(error):
                return []
            return None

    eventually(lambda: launched("nothing answers") == [], timeout=SECONDS, every=0.1)
    aws.box.aws.fault("DescribeInstances", code=fault, status=403, times=-1)
    asked = len(aws.calls("DescribeInstances"))
    assert len(eventually(launched, timeout=SECONDS, every=0.1)) == 2
    # Not as often as their ports are tried.
    assert 0 < len(aws.calls("DescribeInstances")) - asked < 12
    aws.box.aws.clear_faults()
    aws.end()


def test_a_session_that_expires_before_machines_are_seen_may_be_renewed(
    aws: Client,
) -> None:
    intent = aws.intent()
    aws.box.aws.fault("DescribeInstances", code="ExpiredToken", status=403, times=3)
    assert {each.id for each in aws.launch(intent)} == {each["id"] for each in aws.alive()}
    aws.end()


def test_before_there_are_machines_refused_credentials_end_the_launch(aws: Client) -> None:
    aws.box.aws.fault("CreateSecurityGroup", code="ExpiredToken", status=403, times=-1)
    with pytest.raises(PermissionRefused, match="session has expired"):
        adapter("aws").launch(aws.intent())
    aws.box.aws.clear_faults()
    aws.box.aws.fault("RunInstances", code="ExpiredToken", status=403, times=-1)
    with pytest.raises(PermissionRefused, match="session has expired"):
        adapter("aws").launch(aws.intent())
    aws.box.aws.clear_faults()
    adapter("aws").clear("t1")
    assert aws.alive() == []


def test_a_user_without_a_home_directory_needs_none(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = adapter("aws")

    def homeless(path: Path) -> Path:
        if path.parts[:1] == ("~",):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert provider.list_instances("t1") == []


@pytest.mark.parametrize("of_profile", [True, False])
def test_a_session_that_expires_while_there_is_no_room_may_be_renewed(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_profile: bool
) -> None:
    if of_profile:
        keys = aws.box.aws.environment()
        lines = [f"{name.lower()} = {keys[name]}" for name in KEYS]
        (tmp_path / "credentials").write_text("\n".join(["[default]", *lines, ""]))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        for name in KEYS:
            monkeypatch.delenv(name)
    for zone in ZONES:
        aws.box.aws.capacity(TYPE, zone, 0)
    intent = aws.intent()
    assert isinstance(aws.refused(intent), CapacityUnavailable)
    aws.box.aws.fault("RunInstances", code="ExpiredToken", status=403, times=-1)
    expected = CapacityUnavailable if of_profile else PermissionRefused
    for _ in range(2):
        with pytest.raises(expected, match="session has expired") as found:
            adapter("aws").launch(intent)
    assert ("continues once AWS accepts them" in str(found.value)) == of_profile
    aws.box.aws.clear_faults()
    for zone in ZONES:
        aws.box.aws.capacity(TYPE, zone, None)
    assert len(aws.launch(intent)) == 2
    aws.end()


def test_a_task_for_which_nothing_was_asked_for_ends_without_the_credentials(
    laptop: Laptop,
) -> None:
    run = ["run", "--provider", "aws", "--max-run-time-hours", "1"]
    # What EC2 has is known from here on, so that the plan needs no credentials.
    laptop.flow(*run, "--dry-run", "--", "true")
    done = refused(laptop, *run, "--", "true")
    assert done.returncode != 0
    assert "refused the launch" in done.stderr
    (task,) = laptop.json("status")
    assert task["status"] == "failed"
    assert laptop.box.aws.instances() == []


def test_a_task_that_is_cancelled_while_it_waits_for_room_leaves_no_group(laptop: Laptop) -> None:
    for letter in "abcdef":
        laptop.box.aws.capacity("c7i.large", f"us-east-1{letter}", 0)
    laptop.flow(*["run", "--provider", "aws", "-d", "--name", "full"], "--", "true")
    eventually(lambda: groups(laptop.box), timeout=SECONDS, every=0.2)
    laptop.flow("cancel", "full", "--wait")
    assert groups(laptop.box) == []
