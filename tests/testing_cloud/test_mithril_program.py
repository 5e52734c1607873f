"""The fake Mithril as a program of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx


def test_it_serves_until_it_is_told_to_stop() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "flowlite.testing.cloud.mithril", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(3)]
        assert all(line.startswith("export MITHRIL_") for line in lines)
        told = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
        reply = httpx.get(
            f"{told['MITHRIL_API_URL']}/v2/projects",
            headers={"Authorization": f"Bearer {told['MITHRIL_API_KEY']}"},
            trust_env=False,
        )
        assert [each["name"] for each in reply.json()] == [told["MITHRIL_PROJECT"]]
        program.send_signal(signal.SIGTERM)
        assert program.wait(90) == 0
        assert program.stderr is not None
        assert program.stderr.read() == ""


def test_a_port_that_is_none_is_named() -> None:
    command = [sys.executable, "-m", "flowlite.testing.cloud.mithril", "--port", "99999"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2
    assert "a port is 0 to 65535" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_needs_none_of_the_adapters() -> None:
    code = (
        "import sys, flowlite.testing.cloud.mithril.service; "
        "print([n for n in sys.modules if n.split('.')[0] in ('provider_adapters', 'httpx', 'boto3')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
