"""Files of a task on a real Slurm: the project, a setup, outputs, a volume; and a forwarded port, which is cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.flow_commands.run import flow as run_flow
from tests.helpers import eventually
from tests.slurm.site import SlurmSite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVE = """
import http.server, os, pathlib, threading, time
rank = os.environ["FLOW_NODE_RANK"]
print("rank", rank, "reads", pathlib.Path("data.csv").read_text(), open("/tmp/prepared").read().split(), flush=True)
print("volume", open("/data/in/data.csv").read(), flush=True)
pathlib.Path("/data/out" + rank).write_text("from " + rank)
pathlib.Path("runs").mkdir()
for number in range(50):
    pathlib.Path("runs", f"{number}.txt").write_text(f"{rank} {number}")
class Say(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("node " + rank).encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 6006), Say)
threading.Thread(target=server.serve_forever, daemon=True).start()
while not os.path.exists("/mnt/shared/go"):
    time.sleep(0.1)
"""


def test_a_project_a_setup_a_port_and_outputs(slurm_site: SlurmSite, tmp_path: Path) -> None:
    site = slurm_site
    project = tmp_path / "project"
    project.mkdir()
    (project / "serve.py").write_text(SERVE)
    (project / "data.csv").write_text("1,2,3")
    environment = {**os.environ, "FLOW_SYNC": "true"}

    def flow(*words: str) -> str:
        with site.slurm.enter_laptop():
            done = run_flow(words, env=environment, cwd=project, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    words = (
        "--setup",
        "echo x >> /tmp/prepared; echo setup on $(hostname)",
        "--outputs",
        "runs/**",
        "--volume",
        "/data=corpus",
    )
    flow("volumes", "create", "corpus", "--provider", "slurm")
    flow("volumes", "put", "data.csv", "corpus:in/", "--provider", "slurm")
    options = ("--provider", "slurm", "-N", "2", "--manual")
    task = flow("run", "-d", *options, *words, "--", sys.executable, "serve.py").split()[-1]
    eventually(lambda: flow("logs", task).count("reads 1,2,3 ['x']") == 2, timeout=150, every=1)
    assert "setup on node" in flow("logs", task)
    with site.slurm.enter_laptop():
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "flowlite.cli",
                "forward",
                "--json",
                "--node",
                "1",
                task,
                "6006",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None

    def answer() -> str:
        try:
            with (
                site.slurm.enter_laptop(),
                urllib.request.urlopen("http://127.0.0.1:6006", timeout=90) as reply,
            ):
                return str(reply.read().decode())
        except OSError:
            return ""

    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        assert answer() == "node 1"
        # Every connection to the login node breaks; the next request reaches the node again.
        site.slurm.head.exec(["pkill", "-9", "-f", "sshd: .*@notty"])
        eventually(lambda: answer() == "node 1", timeout=90, every=0.5)
        site.go()
        _, err = process.communicate(timeout=100)
        assert (process.returncode, "has ended" in err) == (0, True), err
    finally:
        process.kill()
        process.communicate()
    shown = json.loads(flow("status", task, "--json"))["data"]
    assert shown["status"] == "completed", shown
    (place,) = (project / "flow-outputs").iterdir()
    found = {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}
    wanted = {f"node{n}/runs/{i}.txt": f"{n} {i}" for n in range(2) for i in range(50)}
    assert found == wanted
    assert flow("logs", task).count("volume 1,2,3") == 2
    flow("volumes", "get", "corpus", "back", "--provider", "slurm")
    back = {p.name: p.read_text() for p in (project / "back").rglob("*") if p.is_file()}
    assert back == {"data.csv": "1,2,3", "out0": "from 0", "out1": "from 1"}
    flow("volumes", "rm", "--recursive", "corpus:in", "--provider", "slurm")
    listed = flow("volumes", "ls", "corpus", "--provider", "slurm")
    assert ("out1" in listed, "in" in listed.split()) == (True, False)
