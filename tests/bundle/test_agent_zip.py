"""The agent's zip: complete, the same for the same source, and free when nothing has changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flowlite.bundle import agent_zip
from flowlite.bundle.agent_zip import AgentZip, build_agent_zip
from flowlite.errors import StoreError
from tests.helpers import put_agent

NODE = Path(agent_zip.__file__).parents[1] / "node"


def test_it_is_named_by_its_content(agent_zip: AgentZip) -> None:
    assert hashlib.sha256(agent_zip.path.read_bytes()).hexdigest() == agent_zip.sha256
    assert agent_zip.path.name == f"{agent_zip.sha256}.pyz"


def test_it_holds_the_node_package_and_cloudpickle(agent_zip: AgentZip) -> None:
    names = set(zipfile.ZipFile(agent_zip.path).namelist())
    for path in NODE.rglob("*.py"):
        assert {
            f"flowlite_node/{path.relative_to(NODE)}",
            f"flowlite_node/{path.relative_to(NODE)}c",
        } <= names
    assert "packed/cloudpickle/cloudpickle.py" in names
    assert "__main__.py" in names


def test_all_of_it_can_be_imported_with_the_standard_library_alone(agent_zip: AgentZip) -> None:
    program = """
import importlib, pkgutil, sys
import flowlite_node
found = pkgutil.walk_packages(flowlite_node.__path__, "flowlite_node.")
names = [m.name for m in found if not m.name.endswith("__main__")]
for name in names: importlib.import_module(name)
from flowlite_node.serialization import safe
assert safe.__cached__.endswith(".pyc") or safe.__file__.endswith(".pyc")
print(len(names))
"""
    environment = {"PYTHONPATH": str(agent_zip.path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_node_without_cloudpickle_uses_the_copy_inside(agent_zip: AgentZip) -> None:
    program = """
from flowlite_node.worker import load_call as call
call._add_packed_modules()
import cloudpickle
print(cloudpickle.__file__)
print(cloudpickle.loads(cloudpickle.dumps(lambda x: x + 1))(1))
"""
    environment = {"PYTHONPATH": str(agent_zip.path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    file, value = done.stdout.split()
    assert file.startswith(str(agent_zip.path / "packed"))
    assert value == "2"


def test_the_same_source_gives_the_same_zip(tmp_path: Path, agent_zip: AgentZip) -> None:
    assert build_agent_zip(tmp_path).sha256 == agent_zip.sha256
    program = (
        "import sys; from pathlib import Path; from flowlite.bundle.agent_zip import build_agent_zip;"
        "print(build_agent_zip(Path(sys.argv[1])).sha256)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "other")],
        cwd=NODE.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == agent_zip.sha256


def test_it_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_agent_zip(tmp_path)
    before = built.path.stat()
    monkeypatch.setattr(agent_zip, "_zip", None)
    assert build_agent_zip(tmp_path) == built
    after = built.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("damage", ["zip", "index", "missing", "index of another kind"])
def test_a_damaged_copy_is_made_again(damage: str, tmp_path: Path) -> None:
    put_agent(tmp_path)
    built = build_agent_zip(tmp_path)
    index = tmp_path / "agents" / "index.json"
    if damage == "zip":
        built.path.write_bytes(built.path.read_bytes()[:-1])
    elif damage == "missing":
        built.path.unlink()
    else:
        index.write_text("{" if damage == "index" else json.dumps([1]))
    assert build_agent_zip(tmp_path) == built
    assert hashlib.sha256(built.path.read_bytes()).hexdigest() == built.sha256


def test_a_changed_source_gives_another_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(tmp_path / "home")
    built = build_agent_zip(tmp_path / "home")
    files = dict(agent_zip._files())
    changed = tmp_path / "call.py"
    changed.write_text(
        Path(files["flowlite_node/worker/load_call.py"]).read_text() + "\nCHANGED = 1\n"
    )
    monkeypatch.setattr(
        agent_zip,
        "_files",
        lambda: iter({**files, "flowlite_node/worker/load_call.py": str(changed)}.items()),
    )
    again = build_agent_zip(tmp_path / "home")
    assert again.sha256 != built.sha256
    assert built.path.exists()


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        build_agent_zip(tmp_path / "file")
