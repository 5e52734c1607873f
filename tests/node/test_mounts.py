"""Volumes at the path asked for, in a namespace of their own or by a link; and `exec` into that namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowlite.node.mount_namespace import namespace
from flowlite.node.mount_namespace.mount_points import MountPoints, is_mount_point
from flowlite.node.system import processes

ROOT = Path(__file__).parents[2]
NOBODY = 65534

PROGRAM = """
import json, os, sys
sys.path.insert(0, {root!r})
from flowlite.node.mount_namespace import namespace as mounts
try:
    shown = mounts.show(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
except OSError as error:
    print(json.dumps({{"error": str(error)}}))
    sys.exit(0)
seen = {{}}
for each in shown:
    with open(os.path.join(each["path"], "written"), "w") as file:
        file.write("by a worker")
    seen[each["path"]] = sorted(os.listdir(each["path"]))
def write(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({{"shown": shown, "seen": seen, "caps": status["CapEff"].strip(),
                  "tmp": os.path.exists(sys.argv[3]), "uid": os.getuid(),
                  "wrote": [write(each) for each in sys.argv[4:]]}}))
"""


def show(volumes: list[dict[str, str]], tmp_path: Path, *, keep: list[str] | None = None, uid: int | None = None,
         wrap: list[str] | None = None, write: list[str] | None = None) -> dict[str, object]:  # fmt: skip
    """Run `mounts.show` in a process of its own, perhaps as another user."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT)))
    python = sys.executable if uid is None else "/usr/bin/python3"
    done = subprocess.run(
        [
            *(wrap or []),
            python,
            str(program),
            json.dumps(volumes),
            json.dumps(keep or []),
            str(program),
            *(write or []),
        ],
        capture_output=True,
        text=True,
        check=False,
        **({} if uid is None else {"user": uid, "group": uid, "extra_groups": []}),  # type: ignore[arg-type]
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


pytestmark = pytest.mark.both
needs_namespaces = pytest.mark.needs("namespaces")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that everybody may enter: pytest closes the root of its own whenever another pytest begins."""
    with tempfile.TemporaryDirectory(prefix="flow-mounts-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    source = tmp_path / "volumes" / "ckpt"
    source.mkdir(parents=True)
    (source / "here").write_text("already")
    source.parent.chmod(0o755)
    source.chmod(0o777)
    return source


@needs_namespaces
def test_a_path_that_does_not_exist_is_there_for_workers_only(tmp_path: Path, volume: Path) -> None:
    paths = [
        "/flowlite-test-root/deep/ckpt",
        "/mnt/flowlite-test/ckpt",
        str(tmp_path / "new" / "at"),
    ]
    beside = ["/flowlite-lost", "/flowlite-test-root/lost", "/mnt/lost", str(tmp_path / "lost")]
    found = show(
        [{"name": "c", "path": each, "source": str(volume)} for each in paths],
        tmp_path,
        write=beside,
    )
    assert {each["how"] for each in found["shown"]} == {"namespace"}  # type: ignore[index,attr-defined]
    assert found["seen"] == {each: ["here", "written"] for each in paths}
    assert found["tmp"]
    assert (volume / "written").read_text() == "by a worker"
    assert not any(os.path.exists(each) for each in paths)
    # What is written beside a volume is not lost.
    assert found["wrote"] == [os.path.exists(each) for each in beside] == [False] * 4


@needs_namespaces
@pytest.mark.needs("root", "system-python")
def test_an_ordinary_user_gets_the_same_and_no_capabilities(tmp_path: Path, volume: Path) -> None:
    paths = ["/flowlite-test-root/ckpt", "/mnt/flowlite-test/ckpt"]
    found = show(
        [{"name": "c", "path": each, "source": str(volume)} for each in paths],
        tmp_path,
        uid=NOBODY,
        write=["/flowlite-lost", "/mnt/lost"],
    )
    assert found["uid"] == NOBODY
    assert found["seen"] == {each: ["here", "written"] for each in paths}
    assert int(str(found["caps"]), 16) == 0
    assert found["wrote"] == [False, False]


@needs_namespaces
def test_with_a_mount_point_nothing_is_hidden(tmp_path: Path, volume: Path) -> None:
    path, beside = tmp_path / "new" / "at", [str(tmp_path / "out"), str(tmp_path / "new" / "out")]
    points = MountPoints()
    points.make([str(path)])
    asked = [{"name": "c", "path": str(path), "source": str(volume)}]
    found = show(asked, tmp_path, write=beside)
    assert found["seen"] == {str(path): ["here", "written"]}
    assert found["wrote"] == [os.path.exists(each) for each in beside] == [True, True]
    assert os.listdir(path) == []
    points.remove()
    assert not path.exists()
    assert Path(beside[1]).exists()


def test_the_last_agent_of_a_machine_removes_a_mount_point(tmp_path: Path) -> None:
    path = tmp_path / "at"
    first, second = MountPoints(), MountPoints()
    for each in (first, second):
        each.make([str(path)])
        assert is_mount_point(str(path))
    first.remove()
    assert path.is_dir()
    second.remove()
    assert not path.exists()


def test_a_mount_point_of_a_killed_agent_is_used_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "at"
    program = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from flowlite.node.mount_namespace.mount_points import MountPoints\n"
        "MountPoints().make([sys.argv[1]]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert is_mount_point(str(path))
    points = MountPoints()
    points.make([str(path)])
    points.remove()
    assert not path.exists()


def test_a_directory_of_the_user_is_no_mount_point(tmp_path: Path) -> None:
    empty, full, link = tmp_path / "empty", tmp_path / "full", tmp_path / "link"
    empty.mkdir()
    full.mkdir()
    (full / "mine").touch()
    full.chmod(0o555)
    link.symlink_to(empty)
    points = MountPoints()
    points.make([str(empty), str(full), str(link), str(full / "mine"), "/proc/flowlite-test"])
    points.remove()
    assert empty.is_dir()
    assert full.is_dir()
    assert link.is_symlink()
    full.chmod(0o755)


def test_agents_that_come_and_go_never_lose_their_mount_point(tmp_path: Path) -> None:
    path = str(tmp_path / "at")

    def come_and_go(_: int) -> bool:
        points = MountPoints()
        points.make([path])
        there = os.path.isdir(path)
        points.remove()
        return there

    with ThreadPoolExecutor(8) as agents:
        assert all(agents.map(come_and_go, range(400)))
    assert not os.path.exists(path)


def test_a_volume_at_its_own_place_needs_nothing(tmp_path: Path, volume: Path) -> None:
    found = show([{"name": "c", "path": str(volume), "source": str(volume)}], tmp_path)
    assert found["shown"] == [{"name": "c", "path": str(volume), "how": "same"}]


def test_a_volume_must_not_hide_the_task_itself(tmp_path: Path, volume: Path) -> None:
    home = tmp_path / "flow" / "tasks" / "t1"
    home.mkdir(parents=True)
    asked = [{"name": "c", "path": str(tmp_path / "flow"), "source": str(volume)}]
    assert "would hide" in str(show(asked, tmp_path, keep=[str(home)])["error"])


def test_a_volume_that_is_gone_is_named(tmp_path: Path) -> None:
    asked = [{"name": "lost", "path": "/x", "source": str(tmp_path / "nowhere")}]
    assert "volume 'lost'" in str(show(asked, tmp_path)["error"])


WRITES = """
import json, os, sys
sys.path.insert(0, {root!r})
from flowlite.node.mount_namespace import namespace as mounts
mounts.show(json.loads(sys.argv[1]))
found = {{}}
for place in json.loads(sys.argv[2]):
    os.listdir(place)
    try:
        open(os.path.join(place, "written"), "w").close()
        found[place] = ""
    except OSError as error:
        found[place] = error.strerror
print(json.dumps(found))
"""


@needs_namespaces
@pytest.mark.parametrize(
    "wrap",
    [pytest.param([], marks=pytest.mark.needs("mounts")), ["unshare", "-Urm"]],
    ids=["root", "user-namespace"],
)
def test_nothing_is_written_to_what_is_read_only(
    tmp_path: Path, volume: Path, wrap: list[str]
) -> None:
    (volume / "inner").mkdir()
    at, open_at = str(tmp_path / "ro"), str(tmp_path / "rw")
    own = str(volume)
    program = WRITES.format(root=str(ROOT))
    volumes = [
        {"name": "r", "path": at, "source": own, "read_only": True},
        {"name": "w", "path": open_at, "source": own},
    ]
    places = [at, f"{at}/inner", open_at]
    mount = f'mount -t tmpfs none {own}/inner; exec "$@"'
    done = subprocess.run(
        [
            *(wrap or ["unshare", "-m"]),
            *("sh", "-c", mount, "sh"),
            *(sys.executable, "-c", program, json.dumps(volumes), json.dumps(places)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read_only = "Read-only file system"
    assert json.loads(done.stdout) == {at: read_only, f"{at}/inner": read_only, open_at: ""}


@needs_namespaces
def test_what_is_read_only_at_its_own_place_is_so_too(tmp_path: Path, volume: Path) -> None:
    asked = [{"name": "r", "path": str(volume), "source": str(volume), "read_only": True}]
    program = WRITES.format(root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(asked), json.dumps([str(volume)])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == {str(volume): "Read-only file system"}, done.stderr
    assert not (volume / "written").exists()


NO_NAMESPACES = "this system has no mount namespaces"


class TestWithoutNamespaces:
    """As on macOS, or in a container that forbids them."""

    @pytest.fixture(autouse=True)
    def _without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(namespace, "enter_private", lambda: NO_NAMESPACES)

    def test_a_link_is_made_where_the_path_is_free(self, tmp_path: Path, volume: Path) -> None:
        path = tmp_path / "shared" / "ckpt"
        for _ in range(2):
            shown = namespace.show([{"name": "c", "path": str(path), "source": str(volume)}])
            assert shown[0]["how"] in ("link", "same")
        assert (path / "here").read_text() == "already"
        assert path.is_symlink()

    def test_a_link_is_not_made_to_what_must_not_be_written(
        self, tmp_path: Path, volume: Path
    ) -> None:
        path = tmp_path / "ckpt"
        asked = [{"name": "c", "path": str(path), "source": str(volume), "read_only": True}]
        with pytest.raises(namespace.MountError, match="cannot be shown read-only"):
            namespace.show(asked)
        assert not path.exists()

    def test_an_empty_directory_gives_way(self, tmp_path: Path, volume: Path) -> None:
        path = tmp_path / "ckpt"
        path.mkdir()
        namespace.show([{"name": "c", "path": str(path), "source": str(volume)}])
        assert (path / "here").exists()

    def test_nodes_of_one_machine_share_a_link_to_the_same_bucket(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounted: list[str] = []
        monkeypatch.setattr(
            "flowlite.node.mount_namespace.namespace.is_mounted", lambda path: str(path) in mounted
        )
        alike = f"{tmp_path}/nodes/*/a*/buckets/0/data"

        def show(node: str, attempt: int = 1) -> str:
            source = tmp_path / "nodes" / node / f"a{attempt}" / "buckets" / "0" / "data"
            source.mkdir(parents=True, exist_ok=True)
            mounted.append(str(source))
            path = str(tmp_path / "data")
            namespace.show([{"name": "b", "path": path, "source": str(source), "alike": alike}])
            return os.readlink(path)

        first = show("n0")
        assert show("n1") == first, "node 1 is served by what node 0 shows"
        mounted.clear()
        assert show("n1", attempt=2).endswith("n1/a2/buckets/0/data"), "one that leads nowhere goes"

    def test_a_link_to_the_volume_of_a_home_that_is_gone_is_replaced(
        self, tmp_path: Path, volume: Path
    ) -> None:
        path, gone = tmp_path / "ckpt", tmp_path / "gone" / "volumes" / "ckpt"
        path.symlink_to(gone)
        namespace.show([{"name": "c", "path": str(path), "source": str(volume)}])
        assert path.resolve() == volume.resolve()
        assert not [each for each in tmp_path.iterdir() if each.name.startswith("ckpt.")]

    def test_another_link_that_leads_nowhere_stays(self, tmp_path: Path, volume: Path) -> None:
        path = tmp_path / "ckpt"
        path.symlink_to(tmp_path / "a disk that is not mounted")
        with pytest.raises(namespace.MountError):
            namespace.show([{"name": "c", "path": str(path), "source": str(volume)}])
        assert path.readlink() == tmp_path / "a disk that is not mounted"

    def test_what_is_there_is_never_touched(self, tmp_path: Path, volume: Path) -> None:
        path = tmp_path / "ckpt"
        path.mkdir()
        (path / "mine").write_text("precious")
        with pytest.raises(
            namespace.MountError, match=r"volume 'c' cannot be shown.*no mount namespaces"
        ):
            namespace.show([{"name": "c", "path": str(path), "source": str(volume)}])
        assert (path / "mine").read_text() == "precious"


@needs_namespaces
@pytest.mark.needs("root", "system-python")
@pytest.mark.parametrize("what", ["directory", "link"])
def test_what_another_user_has_made_in_tmp_is_not_mounted_on(
    tmp_path: Path, volume: Path, what: str
) -> None:
    """They can remove it: the volume is gone from there, and workers use what they put in its place."""
    tmp_path.chmod(0o1777)
    theirs, other = tmp_path / "theirs", 4321
    theirs.mkdir(mode=0o777) if what == "directory" else theirs.symlink_to(volume)
    os.chown(theirs, other, other, follow_symlinks=False)
    mine = {"name": "a", "path": str(tmp_path / "a"), "source": str(volume)}
    for uid in (None, NOBODY):
        found = show(
            [mine, {"name": "c", "path": str(theirs), "source": str(volume)}], tmp_path, uid=uid
        )
        assert f"{theirs} belongs to uid {other}" in str(found["error"])
    # Their own volume, and one of root, are shown.
    found = show([{"name": "c", "path": str(theirs), "source": str(volume)}], tmp_path, uid=other)
    assert "shown" in found


@needs_namespaces
def test_enter_goes_where_another_process_is(tmp_path: Path, volume: Path) -> None:
    at = str(tmp_path / "at")
    holder = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from flowlite.node.mount_namespace import namespace as mounts\n"
        f"mounts.show([{{'name': 'c', 'path': {at!r}, 'source': {str(volume)!r}}}])\n"
        "print('up', flush=True); time.sleep(60)"
    )
    visitor = (
        f"import sys, os; sys.path.insert(0, {str(ROOT)!r})\n"
        "from flowlite.node.mount_namespace import namespace as mounts\n"
        f"assert mounts.enter(int(sys.argv[1])); print(os.listdir({at!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            seen = subprocess.run(
                [sys.executable, "-c", visitor, str(process.pid)],
                capture_output=True,
                text=True,
                check=True,
            )
            assert seen.stdout == "['here']\n"
            assert processes.is_alive(process.pid)
        finally:
            process.kill()
