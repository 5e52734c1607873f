"""A task's files and ports on rented machines: the project, a setup, outputs, a forwarded port, a volume's files."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import eventually
from tests.providers.laptop import Laptop

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox

pytest.importorskip("httpx")
pytestmark = pytest.mark.timeout(400)
# Every node serves a port, and ends when a file comes into the volume.
PROGRAM = """
import http.server, os, pathlib, threading, time
rank = os.environ["FLOW_NODE_RANK"]
print("rank", rank, "reads", pathlib.Path("data.csv").read_text(), open("/tmp/prepared").read().split(), flush=True)
pathlib.Path("runs").mkdir()
for number in range(20):
    pathlib.Path("runs", f"{number}.txt").write_text(f"{rank} {number}")
class Say(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("node " + rank).encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 6006), Say)
threading.Thread(target=server.serve_forever, daemon=True).start()
while not os.path.exists("/data/in/go.txt"):
    time.sleep(0.1)
print("it says", open("/data/in/go.txt").read(), flush=True)
"""
OPTIONS = {"aws": [], "mithril": ["--gpu", "h100:8"]}


def answer_of(laptop: Laptop, node: int) -> str:
    """What a node's port says through `flow forward`."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "flowlite.cli", "forward", "--json", "--node", str(node)),
            *(laptop.newest(), "0:6006"),
        ],
        env=laptop.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        port = json.loads(line)["data"]["ports"][0]["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=90) as answer:
            return str(answer.read().decode())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("provider", OPTIONS)
def test_a_project_a_setup_a_port_outputs_and_a_volume(
    box: CloudInABox,
    flow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
) -> None:
    laptop = Laptop(box, flow_home, f'provider = "{provider}"\nsync = true\n')
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    Path("serve.py").write_text(PROGRAM)
    Path("data.csv").write_text("1,2,3")
    options = ("-N", "2", "--manual", "--max-run-time-hours", "1", *OPTIONS[provider])
    words = ("--setup", "echo x >> /tmp/prepared; echo setup on $(hostname)")
    kept = ("--outputs", "runs/**", "--volume", "/data=ckpt,size_gb=10")
    laptop.flow("run", "-d", *options, *words, *kept, "--", "python", "serve.py")
    eventually(lambda: laptop.flow("logs").count("reads 1,2,3 ['x']") == 2, timeout=200, every=1)
    assert "setup on" in laptop.flow("logs")
    assert answer_of(laptop, 1) == "node 1"
    assert answer_of(laptop, 0) == "node 0"

    (tmp_path / "go.txt").write_text("well")
    laptop.flow("volumes", "put", "data.csv", "ckpt:in/")
    assert "data.csv" in laptop.flow("volumes", "ls", "ckpt:in")
    laptop.flow("volumes", "get", "ckpt:in/data.csv", str(tmp_path / "back.csv"))
    assert (tmp_path / "back.csv").read_text() == "1,2,3"
    laptop.flow("volumes", "rm", "ckpt:in/data.csv")
    assert "data.csv" not in laptop.flow("volumes", "ls", "ckpt:in")
    laptop.flow("volumes", "put", str(tmp_path / "go.txt"), "ckpt:in/")

    eventually(lambda: laptop.status() == "completed", timeout=150, every=1)
    assert laptop.flow("logs").count("it says well") == 2
    (place,) = Path("flow-outputs").iterdir()
    found = {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}
    assert found == {f"node{n}/runs/{i}.txt": f"{n} {i}" for n in range(2) for i in range(20)}
    # Without a task that mounts it, no machine reaches the volume.
    said = laptop.flow("volumes", "ls", "ckpt:in", code=2)
    assert "flow dev --provider" in said
