"""`flow --debug`: what was asked of a cloud is said, and no key with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.testing.cloud.mithril.box import PaperMithril
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings


def test_calls_are_told_without_the_key(flow_home: Path) -> None:
    with PaperMithril() as cloud:
        variables = cloud.environment()
        environment = {**os.environ, **variables, "FLOW_HOME": str(flow_home)}
        argv = [sys.executable, "-m", "flowlite.cli", "--debug", "providers", "check", "mithril"]
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        quiet = subprocess.run(
            [*argv[:3], *argv[4:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == quiet.returncode == 0, done.stderr
    assert "flowlite.mithril: GET /v2/me: 200" in done.stderr
    assert "flowlite.mithril" not in quiet.stderr
    assert done.stdout == quiet.stdout
    assert variables["MITHRIL_API_KEY"] not in done.stderr + done.stdout


def test_calls_to_aws_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moto = pytest.importorskip("moto")
    secret = "not-for-anybody-else"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    caplog.set_level("DEBUG", "flowlite.aws")
    with moto.mock_aws():
        Clients(AwsSettings())("ec2", "us-east-1").describe_instances()
    assert "ec2 DescribeInstances in us-east-1: 200" in caplog.text
    assert secret not in caplog.text
