"""Patterns of `outputs=`: what they fit, and what is none."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import SpecError
from flowlite.node.outputs import patterns
from flowlite.spec import TaskConfig


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("runs/**", ["runs/a", "runs/a/b.pt", "runs/.hidden"], ["runs", "a/runs/b", "runsx/a"]),
        ("runs", ["runs", "runs/a/b"], ["a/runs", "runs2"]),
        ("runs/", ["runs/a"], ["run"]),
        ("./a.txt", ["a.txt"], ["b/a.txt"]),
        ("*.pt", ["a.pt", ".pt", "x.pt/y"], ["a/b.pt", "a.ptx"]),
        ("**/*.pt", ["a.pt", "a/b.pt", "a/b/c.pt"], ["a/b.txt"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["az", "a/bz"]),
        ("step_[0-9]?", ["step_12"], ["step_a1", "step_1", "step_1/"[:-1]]),
        ("[!a]x", ["bx"], ["ax", "/x"]),
        ("**", ["a", "a/b"], []),
        ("a[", ["a["], ["a"]),
        ("[z-a]", [], ["z", "a"]),
        ("a\\b", ["a\\b"], ["ab"]),
        ("[]]x", ["]x"], ["x"]),
    ],
)
def test_what_a_pattern_fits(pattern: str, fits: list[str], does_not: list[str]) -> None:
    assert patterns.problem(pattern) == ""
    found = patterns.expression([pattern])
    assert [each for each in fits if not found.fullmatch(each)] == []
    assert [each for each in does_not if found.fullmatch(each)] == []


@pytest.mark.parametrize("pattern", ["", "/etc/passwd", "~/x", "../x", "a/../b", "a\0b", "./", "."])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(SpecError, match=r"outputs: .* is not allowed"):
        TaskConfig(outputs=[pattern])


def test_one_text_is_one_pattern() -> None:
    config = TaskConfig(outputs="runs/**")
    assert config.outputs == ("runs/**",)
    assert TaskConfig.from_json(config.to_json()).outputs == ("runs/**",)


PARTS = st.text(alphabet="ab*?[]!-.", min_size=1, max_size=4).filter(lambda p: p not in (".", ".."))


@given(st.lists(st.one_of(st.just("**"), PARTS), min_size=1, max_size=4))
def test_every_pattern_can_be_used_and_never_leads_out(parts: list[str]) -> None:
    pattern = "/".join(parts)
    patterns.expression([pattern]).fullmatch("a/b")
    for root in patterns.roots([pattern]):
        assert ".." not in root.split("/")
        assert not root.startswith("/")


PATHS = ("a", "b", "ab", "bb", "a/b", "ab/a", "a/b/ab", "b/a/a/b")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each path, since one path of `PATHS` may be the directory of another."""
    root = tmp_path_factory.mktemp("tree")
    for number, path in enumerate(PATHS):
        file = root / str(number) / path
        file.parent.mkdir(parents=True)
        file.touch()
    return root


@given(
    st.lists(
        st.one_of(st.just("**"), st.sampled_from(["a", "*", "?b", "[ab]", "a*"])),
        min_size=1,
        max_size=4,
    )
)
def test_it_fits_what_globs_of_python_fit(tree: Path, parts: list[str]) -> None:
    pattern = "/".join(parts)
    ours = patterns.expression([pattern])
    for number, path in enumerate(PATHS):
        theirs = glob.glob(
            pattern, root_dir=tree / str(number), recursive=True, include_hidden=True
        )
        if path in theirs:
            assert ours.fullmatch(path)


@given(st.lists(st.text(alphabet="ab*/", min_size=1, max_size=5), min_size=1, max_size=3))
def test_all_that_fits_lies_below_the_roots(given: list[str]) -> None:
    wanted = [each for each in given if not patterns.problem(each)]
    found, roots = patterns.expression(wanted), patterns.roots(wanted)
    for path in ("a", "b", "a/b", "b/a", "ab/b/a", "a/a/a"):
        if found.fullmatch(path):
            assert any(root == "" or path == root or path.startswith(f"{root}/") for root in roots)
