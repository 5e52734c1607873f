"""Where the credential of a bucket comes from: as with every AWS tool, said in words, and kept out of all else."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flowlite import ConfigError, TaskConfig
from flowlite.bucket_credentials import account_of, notes, storage_for

Find = Callable[..., dict[str, Any]]
KEYS = "aws_access_key_id = {0}\naws_secret_access_key = {0}-secret\n"


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of AWS's tools, and no variables of theirs but those that name it."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("")
    (tmp_path / "config").write_text("")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def find(aws: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    def find(mount: str | Mapping[str, Any] = "s3://bucket/x", **variables: str) -> dict[str, Any]:
        with monkeypatch.context() as shell:
            for name, value in variables.items():
                shell.setenv(name, value)
            config = TaskConfig(command="true", mounts={"/data": mount})
            return storage_for(config)["/data"]

    return find


def keys(entry: Mapping[str, Any]) -> tuple[str, str, str | None]:
    found = entry["credential"]
    return found["access_key"], found["secret_key"], found["session_token"]


VARIABLES = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "env-secret"}


def test_variables(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text(f"[default]\n{KEYS.format('file')}")
    entry = find(**VARIABLES)
    assert keys(entry) == ("env", "env-secret", None)
    assert entry["source"] == "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert entry["endpoint_url"] is None
    entry = find(**VARIABLES, AWS_SESSION_TOKEN="t")
    assert keys(entry) == ("env", "env-secret", "t")
    assert entry["source"].endswith("with AWS_SESSION_TOKEN")


def test_half_of_the_variables_is_a_mistake(find: Find) -> None:
    with pytest.raises(ConfigError, match="missing: AWS_SECRET_ACCESS_KEY; set both, or neither"):
        find(AWS_ACCESS_KEY_ID="env")


def test_the_default_profile(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text(f"[default]\n{KEYS.format('file')}aws_session_token = t=\n")
    entry = find()
    assert keys(entry) == ("file", "file-secret", "t=")
    assert entry["source"] == f"profile 'default' of {aws / 'credentials'}"


def test_a_named_profile(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text(
        f"[default]\n{KEYS.format('one')}\n[lab]\n{KEYS.format('two')}"
    )
    (aws / "config").write_text(
        f"[profile lab]\nregion = eu-north-1\nendpoint_url = http://lab:9/\n"
        f"[profile in-config]\n{KEYS.format('three')}"
    )
    entry = find(AWS_PROFILE="lab")
    assert keys(entry)[0] == "two"
    assert (entry["region"], entry["endpoint_url"]) == ("eu-north-1", "http://lab:9")
    assert keys(find(AWS_PROFILE="in-config"))[0] == "three"


def test_the_profile_of_a_mount_wins_over_variables(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text(f"[lab]\n{KEYS.format('two')}")
    assert keys(find({"url": "s3://b12", "profile": "lab"}, **VARIABLES))[0] == "two"
    assert keys(find(**VARIABLES, AWS_PROFILE="lab"))[0] == "env"


def test_the_role_of_this_machine_is_not_lent_to_nodes(find: Find) -> None:
    """Where nothing else is found, botocore would ask the metadata service, here one that answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = find(
            AWS_EC2_METADATA_SERVICE_ENDPOINT=address,
            AWS_CONTAINER_CREDENTIALS_FULL_URI=address,
        )
        assert found["credential"] is None
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_profile_that_is_not_there_names_the_nearest(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text(f"[labor]\n{KEYS.format('two')}")
    with pytest.raises(ConfigError, match=r"profile 'labour' is neither in .*did you mean 'labor'"):
        find(AWS_PROFILE="labour")


def test_a_program_that_gives_credentials(find: Find, aws: Path) -> None:
    ends = datetime.now(UTC) + timedelta(hours=2)
    program = aws / "give.py"
    program.write_text(
        "import json; print(json.dumps({'Version': 1, 'AccessKeyId': 'p', 'SecretAccessKey': 'ps', "
        f"'SessionToken': 'pt', 'Expiration': '{ends.isoformat()}'}}))"
    )
    (aws / "config").write_text(f"[default]\ncredential_process = {sys.executable} '{program}'\n")
    entry = find()
    assert keys(entry) == ("p", "ps", "pt")
    assert entry["credential"]["expires"] == pytest.approx(ends.timestamp())
    (note,) = notes({"/data": entry})
    assert "ends in 2.0 hours" in note
    assert "ps" not in note.split()


def test_a_program_that_fails_or_babbles_is_not_quoted_where_it_may_hold_the_secret(
    find: Find, aws: Path
) -> None:
    (aws / "config").write_text("[default]\ncredential_process = sh -c 'echo locked >&2; exit 4'\n")
    with pytest.raises(ConfigError, match="locked"):
        find()
    (aws / "config").write_text("[default]\ncredential_process = echo secret-babble\n")
    with pytest.raises(ConfigError) as caught:
        find()
    assert "something else than a credential" in str(caught.value)
    assert "secret-babble" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_broken_file_is_named_by_line_and_not_quoted(find: Find, aws: Path) -> None:
    (aws / "credentials").write_text("aws_secret_access_key = oops\n")
    with pytest.raises(ConfigError, match=r"Unable to parse config file: .*credentials") as caught:
        find()
    assert "oops" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AWS_ENDPOINT_URL": "http://a:1/"}, "http://a:1"),
        ({"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "http://b:2"}, "http://b:2"),
        ({}, "http://services:3"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "AWS_ENDPOINT_URL": "http://a:1"}, None),
    ],
)
def test_endpoints(find: Find, aws: Path, variables: dict[str, str], expected: str) -> None:
    (aws / "config").write_text(
        "[default]\nservices = mine\nendpoint_url = http://all:4\n\n"
        "[services mine]\ns3 =\n  endpoint_url = http://services:3\n  other = x\n"
    )
    assert find(**variables)["endpoint_url"] == expected
    mine = {"url": "s3://b12", "endpoint_url": "http://mine:5", "region": "mars-1"}
    entry = find(mine, **variables, AWS_REGION="eu-1")
    assert (entry["endpoint_url"], entry["region"]) == ("http://mine:5", "mars-1")


def test_nothing_found_is_said(find: Find) -> None:
    entry = find()
    assert entry["credential"] is None
    assert "none was found" in entry["source"]
    assert "no AWS credential was found here" in notes({"/data": entry})[0]


def test_what_logs_in_goes_through_botocore(find: Find, aws: Path) -> None:
    """A role taken by a profile: botocore asks AWS for it, here a stand-in for its security token service."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            assert "Action=AssumeRole" in asked
            body = (
                b"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>r</AccessKeyId>"
                b"<SecretAccessKey>rs</SecretAccessKey><SessionToken>rt</SessionToken>"
                b"<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
            )
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (aws / "credentials").write_text(f"[base]\n{KEYS.format('base')}")
        (aws / "config").write_text(
            "[profile role]\nrole_arn = arn:aws:iam::1:role/reader\nsource_profile = base\nregion = eu-1\n"
        )
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        entry = find(AWS_PROFILE="role", AWS_ENDPOINT_URL_STS=endpoint)
        server.shutdown()
    assert keys(entry) == ("r", "rs", "rt")
    assert entry["credential"]["expires"] == datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    assert entry["source"].endswith("logged in")


def test_a_secret_is_not_in_the_words_of_an_account(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert "env-secret" not in repr(account_of())


def test_a_task_without_buckets_looks_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
    assert storage_for(TaskConfig(command="true")) == {}


def test_checkpoints_in_a_bucket_are_opened_too(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": "http://a:1"}.items():
        monkeypatch.setenv(name, value)
    config = TaskConfig(command="true", checkpoint={"path": "/ckpt", "sync": "s3://b12/run"})
    found = storage_for(config)
    assert found["checkpoint"]["url"] == "s3://b12/run"
    assert found["checkpoint"]["endpoint_url"] == "http://a:1"
