"""What runs amount to, and how that is shown and kept."""

from __future__ import annotations

import builtins
import csv
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import ConfigError
from flowlite.scaling import files, picture
from flowlite.scaling.chart import chart, number
from flowlite.scaling.ladder import Run, Rung, read_nodes, rungs_of


def measured(*pairs: tuple[int, float | None]) -> list[Rung]:
    return rungs_of(
        Run(nodes, nodes * 8, value, "" if value else "it diverged") for nodes, value in pairs
    )


def test_efficiency_is_throughput_over_that_of_one_node_per_node() -> None:
    one, two, four = measured((1, 100.0), (2, 190.0), (4, 300.0))
    assert (one.speed_up, one.efficiency) == (1.0, 1.0)
    assert (two.speed_up, two.efficiency) == (1.9, 0.95)
    assert (four.speed_up, four.efficiency) == (3.0, 0.75)
    assert four.workers == 32


def test_it_is_relative_to_the_lowest_rung_where_that_is_not_one_node() -> None:
    two, eight = measured((8, 320.0), (2, 100.0))
    assert (two.nodes, two.efficiency) == (2, 1.0)
    assert (eight.speed_up, eight.efficiency) == (3.2, 0.8)


def test_a_rung_that_failed_has_its_reason_and_the_next_one_counts() -> None:
    one, two, four = measured((1, None), (2, 10.0), (4, 20.0))
    assert (one.throughput, one.efficiency, one.reason) == (None, None, "it diverged")
    assert (two.efficiency, four.efficiency) == (1.0, 1.0)


def test_the_median_of_repeated_runs_counts() -> None:
    one, two = measured((1, 10.0), (1, 90.0), (1, 11.0), (2, 20.0), (2, None))
    assert one.throughput == 11.0
    assert two.throughput == 20.0
    assert two.reason == "it diverged (1 of 2 runs)"


@pytest.mark.parametrize(("text", "nodes"), [("1,2,4", [1, 2, 4]), ("8, 2,2", [2, 8])])
def test_numbers_of_nodes_are_read(text: str, nodes: list[int]) -> None:
    assert read_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0,1", "1-4", "1,,2", "two", "-1"])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--nodes"):
        read_nodes(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.12345, "0.1235"), (98.7654, "98.77"), (1234.5, "1,234"), (123456.0, "123,500"), (999.96, "1,000"),
     (9999.6, "10,000"), (3e-7, "3.000e-07")],
)  # fmt: skip
def test_numbers_have_the_digits_that_count(value: float, shown: str) -> None:
    assert number(value) == shown


def test_the_chart_has_a_line_at_the_good_efficiency() -> None:
    text = chart(measured((1, 100.0), (2, 120.0), (4, None)), "rate", width=64, plain=True)
    throughput, efficiency = text.split("\n\n")
    assert throughput.splitlines()[0] == "rate"
    assert "failed" in throughput.splitlines()[3]
    heading, one, two, four = efficiency.splitlines()
    assert heading == "efficiency, | is 0.9"
    # The line is at the same place in each bar: in the bar of 1.0, and far behind that of 0.6.
    assert one.index("|") == two.index("|")
    assert one[one.index("|") + 1] == "#"
    assert two[: two.index("|")].endswith(" ")
    bar = one.index("#")
    assert (one.index("|") - bar) / one.count("#") == pytest.approx(0.9, abs=0.03)
    assert (two.count("#") / (one.count("#") + 1)) == pytest.approx(0.6, abs=0.03)
    assert "failed" in four


def test_nothing_measured_is_no_chart() -> None:
    assert chart(measured((1, None)), "rate") == ""


def test_the_tables_agree(tmp_path: Path) -> None:
    rungs = measured((1, 100.0), (1, 110.0), (2, None))
    files.write_tables(tmp_path, rungs, {"metric": "rate"})
    kept = json.loads((tmp_path / "scale.json").read_text())
    assert kept["metric"] == "rate"
    assert kept["good_efficiency"] == 0.9
    assert [rung["throughput"] for rung in kept["rungs"]] == [105.0, None]
    assert kept["rungs"][1]["reason"] == "it diverged"
    one, two = csv.DictReader((tmp_path / "scale.csv").open())
    assert (one["throughput"], one["lowest"], one["highest"], one["runs"]) == (
        "105.0",
        "100.0",
        "110.0",
        "2",
    )
    assert (two["efficiency"], two["reason"]) == ("", "it diverged")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scale.csv", "scale.json"]


def test_an_earlier_ladder_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(files.directory_for(None, "train")) == "scale-train"
    assert str(files.directory_for(None, "train")) == "scale-train-2"
    assert files.directory_for(Path("here"), "train") == Path("here")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--output: file cannot be written to"):
        files.directory_for(Path("file"), "train")


def test_ladders_that_begin_together_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(8)

    def begin(number: int) -> Path:
        together.wait(90)
        return files.directory_for(None, "train")

    for _ in range(12):
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(begin, range(8)))
        assert len(set(found)) == 8


def test_the_picture_has_the_line_at_the_good_efficiency(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import image

    path = tmp_path / "scale.png"
    picture.draw(measured((1, 100.0), (2, 190.0), (4, None)), "rate", "train", path)
    pixels = image.imread(path)
    red = abs(pixels[:, :, :3] * 255 - (0xC0, 0x39, 0x2B)).max(axis=2) < 3
    dashes = [y for y, count in enumerate(red.sum(axis=1)) if count > 150]
    # One line, over all of one half of the picture: where 0.9 is on an axis from 0 to 1.15.
    assert dashes
    assert max(dashes) - min(dashes) < 8
    assert min(dashes) / len(pixels) == pytest.approx(0.28, abs=0.06)


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    real = builtins.__import__

    def no_matplotlib(name: str, *rest: Any, **more: Any) -> Any:
        assert not name.startswith("matplotlib"), "it was imported although it is not there"
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(picture.NoMatplotlib, match=r"pip install matplotlib"):
        picture.draw(measured((1, 1.0)), "rate", "train", tmp_path / "scale.png")
