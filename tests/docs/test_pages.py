"""Every code block of README.md and docs/ is run; what a page shows is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Reader, blocks_of, compare, environment_of, python_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, flow_home: Path, tmp_path: Path) -> None:
    directory, tools = tmp_path / "page", tmp_path / "tools"
    directory.mkdir()
    tools.mkdir()
    for name in ("Makefile", "examples", "pyproject.toml"):
        (directory / name).symlink_to(ROOT / name)
    python = python_of(page)
    reader = Reader(directory, environment_of(flow_home, tools, python), python)
    try:
        for block in blocks_of(page):
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    import re

    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: no {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES[1:]:
        name = str(page.relative_to(ROOT / "docs"))
        assert name == "index.md" or f"({name})" in index, f"docs/index.md does not lead to {name}"


class TestTheComparison:
    """The harness itself can fail."""

    block = blocks_of(ROOT / "README.md")[:1]

    @pytest.mark.parametrize(
        ("shown", "came"),
        [
            ("a\nb\n", "a\nc\n"),
            ("a\n", "a\nb\n"),
            ("task t0123456789 completed\n", "task digits completed\n"),
            ("[Node 0] [10:00:00] a\n", "[Node 1] [10:00:00] a\n"),
            ("a\n...\nz\n", "a\ny\n"),
        ],
    )
    def test_differences_are_found(self, shown: str, came: str) -> None:
        with pytest.raises(AssertionError):
            compare(self.block[0], shown, came)

    @pytest.mark.parametrize(
        ("shown", "came"),
        [
            ("took 1.2s\n", "took 3.4s\n"),
            ("task t0123456789\n", "task tabcdefghij\n"),
            (
                "[Node 1] [10:00:00] b\n[Node 0] [10:00:00] a\n",
                "[Node 0] [11:11:11] a\n[Node 1] [11:11:12] b\n",
            ),
            ("a\n...\nz\n", "a\nb\nc\nz\n"),
            ("a ... z\n", "a b c z\n"),
        ],
    )
    def test_what_changes_from_run_to_run_is_not(self, shown: str, came: str) -> None:
        compare(self.block[0], shown, came)
