"""Which files are finished, and which never are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.checkpoints.stability import (
    FileState,
    StabilityWatch,
    checkpoint_above,
    is_temporary,
)

SETTLE = 2.0


def seen(size: int, moment: int = 0) -> FileState:
    return FileState(size, moment, moment, 7)


def watched(*looks: tuple[dict[str, FileState], set[str], float]) -> StabilityWatch:
    watch = StabilityWatch(SETTLE)
    for files, writing, now in looks:
        watch.look(files, writing, now)
    return watch


class TestFinished:
    def test_a_file_at_rest_is(self) -> None:
        file = {"a.pt": seen(5)}
        assert not watched((file, set(), 0.0)).finished
        assert not watched((file, set(), 0.0), (file, set(), 1.9)).finished
        assert watched((file, set(), 0.0), (file, set(), 2.0)).finished == file

    def test_one_that_grows_is_not(self) -> None:
        looks = [({"a.pt": seen(size, size)}, set[str](), size * 5.0) for size in range(10)]
        assert not watched(*looks).finished

    def test_one_that_is_open_for_writing_is_not_however_still_it_lies(self) -> None:
        file = {"a.pt": seen(5)}
        watch = watched((file, {"a.pt"}, 0.0), (file, {"a.pt"}, 100.0))
        assert not watch.finished
        assert watch.busy
        watch.look(file, set(), 101.0)
        assert not watch.finished
        watch.look(file, set(), 103.0)
        assert watch.finished == file
        assert not watch.busy

    def test_another_file_of_a_checkpoint_may_follow_for_some_time(self) -> None:
        file = {"out/checkpoint-4/model.pt": seen(5)}
        watch = watched((file, set(), 0.0), (file, set(), 9.0))
        assert watch.finished == file
        assert watch.begun == {"out/checkpoint-4"}
        assert watch.busy, "a copy that is due waits for it"
        watch.look(file, set(), 10.0)
        assert not watch.begun
        assert not watch.busy
        watch.look({**file, "out/checkpoint-4/optimizer.pt": seen(1)}, set(), 11.0)
        assert watch.begun == {"out/checkpoint-4"}
        watch.end(file)
        assert not watch.begun

    def test_the_same_size_again_is_no_rest(self) -> None:
        watch = watched(({"a": seen(5, 1)}, set(), 0.0), ({"a": seen(5, 2)}, set(), 10.0))
        assert not watch.finished

    def test_temporary_names_are_never_finished(self) -> None:
        for name in ("a.pt.tmp", ".tmpx", "step_5.tmp/x.pt", "tmp-checkpoint-5/x", "a.part", "a~"):
            assert is_temporary(name)
            file = {name: seen(5)}
            watch = watched((file, set(), 0.0), (file, set(), 10.0))
            assert not watch.finished
            assert not watch.unfinished
        for name in ("epoch_5.pt", "template.pt", "party/model.bin", "tmp.pt"):
            assert not is_temporary(name)


class TestTheEnd:
    def test_when_all_ended_by_themselves_everything_is_finished(self) -> None:
        watch = watched(({"a": seen(1)}, {"a"}, 0.0))
        watch.end({"a": seen(9, 5), "b": seen(2), "c.tmp": seen(1)})
        assert watch.finished == {"a": seen(9, 5), "b": seen(2)}

    def test_what_was_not_at_rest_when_a_worker_was_cut_off_is_doubtful(self) -> None:
        at_rest, open_still = {"a": seen(1)}, {"b": seen(3)}
        watch = watched((at_rest, set(), 0.0), (at_rest | open_still, {"b"}, 2.0))
        watch.cut()
        watch.end(at_rest | open_still)
        assert watch.finished == at_rest
        assert watch.unfinished == ["b"]

    def test_one_that_was_renamed_into_its_place_is_believed(self) -> None:
        renamed, open_still = FileState(3, 10, 12, 7), FileState(3, 10, 12, 8)
        watch = watched(({"a": renamed, "b": open_still, "c": seen(4, 9)}, {"b"}, 0.0))
        watch.cut()
        watch.end({"a": renamed, "b": open_still, "c": seen(4, 9)})
        assert watch.finished == {"a": renamed}
        assert watch.unfinished == ["b", "c"]

    def test_a_doubtful_file_that_is_written_anew_is_one_like_any_other(self) -> None:
        watch = watched(({"b": seen(3)}, {"b"}, 0.0))
        watch.cut()
        watch.look({"b": seen(3)}, set(), 50.0)
        assert not watch.finished
        watch.look({"b": seen(8, 60)}, set(), 60.0)
        watch.look({"b": seen(8, 60)}, set(), 62.0)
        assert watch.finished == {"b": seen(8, 60)}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, float, int]]:
    """What a writer does to one file: (open, write, close or cut) with pauses."""
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from(["open", "write", "close"]), st.floats(0.01, 5.0)),
            min_size=1,
            max_size=12,
        )
    )
    return [(what, pause, number) for number, (what, pause) in enumerate(steps)]


@settings(max_examples=300)
@given(histories(), st.booleans(), st.lists(st.floats(0.01, 4.0), min_size=1, max_size=20))
def test_a_half_written_file_is_never_finished(
    history: list[tuple[str, float, int]], cut: bool, pauses: list[float]
) -> None:
    """A writer opens, writes and closes; looks come at any time. Finished is only what it had closed by itself."""
    watch, now, size, is_open, closed = StabilityWatch(SETTLE), 0.0, 0, False, set[int]()
    looks = iter(pauses)
    for what, pause, number in history:
        if what == "open":
            is_open, size = True, 0
        elif what == "write" and is_open:
            size += number + 1
        elif what == "close" and is_open:
            is_open = False
            closed.add(hash((size, number)))
        mark = hash((size, number)) if not is_open else -number - 1
        until = now + pause
        while now < until and (step := next(looks, None)) is not None:
            now = min(until, now + step)
            watch.look({"f": FileState(size, mark, mark, 0)}, {"f"} if is_open else set(), now)
            if "f" in watch.finished:
                assert not is_open
        now = until
    if cut and is_open:
        watch.look({"f": FileState(size, -999, -999, 0)}, set(), now)
        watch.cut()
        watch.end({"f": FileState(size, -999, -999, 0)})
        assert "f" not in watch.finished


def test_a_checkpoint_is_known_by_the_name_of_its_directory() -> None:
    for directory in (
        *(
            "checkpoint-500",
            "out/checkpoint_3",
            "global_step12",
            "iter_0000100",
            "step-7",
            "ckpt-1",
        ),
        "lightning/epoch=1-step=20.ckpt",
    ):
        assert checkpoint_above(f"{directory}/model.pt") == directory
        assert checkpoint_above(f"{directory}/more/checkpoint-1/model.pt") == directory
    for path in (
        "checkpoint-500",
        "run1/a.pt",
        "epoch_3/log.txt",
        "checkpoints/a.pt",
        "checkpoint-5.unfinished/a",
    ):
        assert not checkpoint_above(path)
