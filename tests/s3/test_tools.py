"""What the programs that mount buckets are told; those not installed here are tested by their command lines alone."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from flowlite import ConfigError, TaskConfig
from flowlite.api.adapters import adapter
from flowlite.node.buckets import fuse_programs as s3_tools
from flowlite.node.s3.client import Store
from flowlite.node.s3.sigv4 import Credential

GIVEN = Credential("AKID", "s3cr3t")
AWS = Store("s3://bucket/pre/fix", "bucket", "pre/fix", region="eu-central-1", credential=GIVEN)
OWN = replace(AWS, endpoint_url="https://s3.example.org:9000", region=None)
FILES = Path("/node/files")


def test_mountpoint_s3() -> None:
    assert s3_tools.mountpoint_s3(AWS, FILES, "/at") == [
        *("mount-s3", "bucket", "/at", "--foreground", "--read-only", "--prefix", "pre/fix/"),
        *("--region", "eu-central-1", "--metadata-ttl", "60", "--profile", "flowlite"),
    ]
    own = s3_tools.mountpoint_s3(OWN, FILES, "/at")
    assert own[own.index("--endpoint-url") + 1] == "https://s3.example.org:9000"
    assert "--force-path-style" in own
    open_to_all = s3_tools.mountpoint_s3(replace(AWS, credential=None), FILES, "/at")
    assert "--no-sign-request" in open_to_all
    role = s3_tools.mountpoint_s3(replace(AWS, credential=None, own_role=True), FILES, "/at")
    assert not {"--profile", "--no-sign-request"} & set(role)


def test_rclone() -> None:
    arguments = s3_tools.rclone(AWS, FILES, "/at")
    assert arguments[:4] == ["rclone", "mount", "bucket:pre/fix", "/at"]
    assert "--read-only" in arguments
    assert s3_tools.rclone(replace(AWS, prefix=""), FILES, "/at")[2] == "bucket:"
    assert s3_tools.rclone_config(AWS, FILES) == (
        "[s3]\ntype = s3\nprovider = AWS\nregion = eu-central-1\nno_check_bucket = true\nenv_auth = true\n"
        "shared_credentials_file = /node/files/.aws/credentials\nprofile = flowlite\n\n"
        "[bucket]\ntype = alias\nremote = s3:bucket\n"
    )
    own = s3_tools.rclone_config(OWN, FILES)
    assert "provider = Other\nregion = us-east-1\n" in own
    assert "endpoint = https://s3.example.org:9000\nforce_path_style = true\n" in own
    assert "env_auth" not in s3_tools.rclone_config(replace(AWS, credential=None), FILES)
    role = s3_tools.rclone_config(replace(AWS, credential=None, own_role=True), FILES)
    assert "env_auth = true\n" in role
    assert "profile" not in role


@pytest.mark.parametrize("token", [None, "session/token="])
def test_no_command_line_has_a_secret_and_files_are_private(
    tmp_path: Path, token: str | None
) -> None:
    store = replace(AWS, credential=replace(GIVEN, session_token=token))
    s3_tools.write_files(store, tmp_path / "tool")
    written = [path for path in (tmp_path / "tool").rglob("*") if path.is_file()]
    assert any("s3cr3t" in path.read_text() for path in written)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    for tool in s3_tools.TOOLS:
        line = " ".join(tool.command(store, tmp_path / "tool", "/at"))
        assert "s3cr3t" not in line
        assert "session/token=" not in line
    s3_tools.remove_files(tmp_path / "tool")
    assert [path for path in (tmp_path / "tool").rglob("*") if path.is_file()] == []


def test_the_environment_of_a_program_is_made_from_nothing() -> None:
    inherited = {
        "PATH": "/bin",
        "AWS_CA_BUNDLE": "/x",
        "AWS_PROFILE": "mine",
        "AWS_SECRET_ACCESS_KEY": "mine",
        "RCLONE_CONFIG": "/x",
        "HTTPS_PROXY": "http://proxy",
        "FLOW_TASK_ID": "t1",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x",
    }
    made = s3_tools.environment(AWS, FILES, inherited, "/usr/bin")
    assert made == {
        "PATH": "/usr/bin",
        "HOME": "/node/files",
        "HTTPS_PROXY": "http://proxy",
        "FLOW_TASK_ID": "t1",
        "AWS_SHARED_CREDENTIALS_FILE": "/node/files/.aws/credentials",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    role = replace(AWS, credential=None, own_role=True)
    made = s3_tools.environment(role, FILES, inherited, "/usr/bin")
    assert made["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == "http://x"
    assert "AWS_EC2_METADATA_DISABLED" not in made
    session = replace(AWS, credential=replace(GIVEN, session_token="t"))
    assert "AWS_SESSION_TOKEN" not in s3_tools.environment(session, FILES, inherited, "/usr/bin")


class TestWhatIsMissing:
    def test_no_fuse(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(s3_tools, "FUSE_DEVICE", str(tmp_path / "fuse"))
        assert "--device" in s3_tools.problem("/usr/bin")

    def test_no_program(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(s3_tools, "FUSE_DEVICE", os.devnull)
        assert "none of mount-s3, rclone is installed here" in s3_tools.problem(str(tmp_path))

    def test_no_fusermount(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(s3_tools, "FUSE_DEVICE", os.devnull)
        (tmp_path / "rclone").touch(mode=0o755)
        assert "fusermount3 is not installed here" in s3_tools.problem(str(tmp_path))
        (tmp_path / "fusermount3").touch(mode=0o755)
        assert s3_tools.problem(str(tmp_path)) == ""
        assert [each[0].name for each in s3_tools.available(str(tmp_path))] == ["rclone"]

    def test_the_local_provider_says_so_when_a_task_is_submitted(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flow_home: Path
    ) -> None:
        monkeypatch.setattr(s3_tools, "FUSE_DEVICE", str(tmp_path / "fuse"))
        config = TaskConfig(command="true", mounts={"/data": "s3://bucket"})
        with pytest.raises(ConfigError, match=r"^mounts: there is no .*/fuse here"):
            adapter("local").plan(config)


def test_programs_are_found_beside_the_python_of_the_task() -> None:
    path = s3_tools.search_path({"PATH": "/a:/b", "HOME": "/h"}, "/venv/bin/python").split(":")
    assert path[:2] == ["/a", "/b"]
    assert path[-1] == "/venv/bin"
    assert {"/usr/local/bin", "/h/.local/bin"} <= set(path)
