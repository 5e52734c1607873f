"""Which files were renamed into their place: real files, and what inotify says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.checkpoints.rename_watch import RenameWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def put(path: Path, content: str = "x") -> None:
    """Writes a file as one should."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(content)
    partial.replace(path)


def renamed_in(watch: RenameWatch) -> set[str]:
    watch.read()
    return watch.renamed


@pytest.fixture
def watch(tmp_path: Path) -> RenameWatch:
    (tmp_path / "old").mkdir()
    (tmp_path / "before").write_text("x")
    return RenameWatch(tmp_path)


def test_small_files_that_were_renamed(watch: RenameWatch, tmp_path: Path) -> None:
    """Their times tell it of one in some hundred."""
    for number in range(200):
        put(tmp_path / "old" / f"{number}.pt")
        (tmp_path / f"in-place-{number}").write_text("x")
    assert renamed_in(watch) == {f"old/{number}.pt" for number in range(200)}


def test_one_that_is_written_afterwards(watch: RenameWatch, tmp_path: Path) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b")
    with (tmp_path / "a").open("a") as file:
        file.write("more")
    assert renamed_in(watch) == {"b"}
    put(tmp_path / "a")
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_text("anew")
    assert renamed_in(watch) == {"a"}


def test_new_directories(watch: RenameWatch, tmp_path: Path) -> None:
    (tmp_path / "step" / "deep").mkdir(parents=True)
    watch.read()
    put(tmp_path / "step" / "deep" / "model.pt")
    # As Transformers does: the files are written in place, and then their directory is renamed.
    (tmp_path / "tmp-checkpoint-5" / "deep").mkdir(parents=True)
    watch.read()
    (tmp_path / "tmp-checkpoint-5" / "deep" / "model.pt").write_text("x")
    (tmp_path / "tmp-checkpoint-5").rename(tmp_path / "checkpoint-5")
    assert renamed_in(watch) == {"step/deep/model.pt", "checkpoint-5/deep/model.pt"}
    assert watch.brought == {"checkpoint-5/deep/model.pt"}
    (tmp_path / "checkpoint-5" / "deep" / "model.pt").write_text("y")
    assert renamed_in(watch) == {"step/deep/model.pt"}
    assert not watch.brought


def test_what_is_lost_is_not_believed(watch: RenameWatch, tmp_path: Path) -> None:
    put(tmp_path / "a")
    longest = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(longest // 2 + 1):
        # Two files in turn, since equal events are told once.
        os.truncate(tmp_path / "before", number + 1)
        (tmp_path / "old").joinpath("b").touch()
        os.truncate(tmp_path / "old" / "b", number + 1)
    put(tmp_path / "b")
    assert renamed_in(watch) == set()
    put(tmp_path / "b")
    assert renamed_in(watch) == {"b"}


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "append", "remove", "read"]), st.sampled_from("ab")),
    max_size=15,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    watch, whole = RenameWatch(root), set[str]()
    for what, name in steps:
        path = root / name
        if what == "put":
            put(path)
            whole.add(name)
        elif what == "append":
            with path.open("a") as file:
                file.write("x")
            whole.discard(name)
        elif what == "remove":
            path.unlink(missing_ok=True)
        else:
            watch.read()
    assert renamed_in(watch) & {each.name for each in root.iterdir()} == {
        name for name in whole if (root / name).exists()
    }
    watch.close()


TRAIN = """\
import os, signal
from pathlib import Path

from flowlite import Checkpoint, FlowApp

app = FlowApp()
here = Path("HERE/ckpt")


@app.function(checkpoint=Checkpoint(str(here), every=600, sync="HERE/copies"), retries=1)
def train() -> list[str]:
    if os.environ["FLOW_ATTEMPT"] == "2":
        return sorted(each.name for each in here.iterdir())
    partial = here / "last.pt.tmp"
    partial.write_bytes(b"whole")
    partial.replace(here / "last.pt")
    (here / "torn.pt").write_bytes(b"half of")
    os.kill(os.getpid(), signal.SIGKILL)
    return []


if __name__ == "__main__":
    print(train.remote())
"""


def test_the_checkpoint_of_the_moment_before_a_kill_is_there(
    flow_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("HERE", str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "FLOW_HOME": str(flow_home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "'last.pt'" in done.stdout
    assert "'torn.pt'" not in done.stdout
