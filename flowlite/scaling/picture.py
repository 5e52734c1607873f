"""Draws a scaling ladder as a picture with matplotlib (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.scaling.chart import number
from flowlite.scaling.ladder import GOOD, Rung, first_measured

_BLUE, _GREY, _RED = "#1f5fa8", "#8a8a8a", "#c0392b"


class NoMatplotlib(ConfigError):
    """matplotlib is not installed."""


def check() -> None:
    """Raises NoMatplotlib if matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise NoMatplotlib(
            "no PNG can be drawn: matplotlib is not installed here. Install it: pip install matplotlib"
        )


def draw(rungs: Sequence[Rung], metric: str, title: str, path: Path) -> None:
    """Writes a PNG with throughput and efficiency over the number of nodes. Writes nothing if nothing was measured.

    Raises:
        NoMatplotlib: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check()
    # pyplot is avoided, since it would look for a display and keep figures in memory.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    base = first_measured(rungs)
    if base is None:
        return
    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    _throughput(left, rungs, base, metric)
    _efficiency(right, rungs, base)
    figure.savefig(path, format="png", metadata={"Software": "flowlite"})


def _throughput(axes: Any, rungs: Sequence[Rung], base: Rung, metric: str) -> None:
    nodes = [rung.nodes for rung in rungs]
    each = (base.throughput or 0.0) / base.nodes
    axes.plot(nodes, [each * n for n in nodes], "--", color=_GREY, label="ideal")
    for rung in rungs:
        axes.plot([rung.nodes] * len(rung.values), rung.values, "_", color=_BLUE, alpha=0.5)
    axes.plot(
        nodes, [_or_gap(rung.throughput) for rung in rungs], "o-", color=_BLUE, label="measured"
    )
    axes.set_title("throughput")
    axes.set_ylabel(metric)
    for rung in rungs:
        if rung.throughput is not None:
            _note(axes, rung.nodes, rung.throughput, number(rung.throughput), below=True)
    if len(nodes) > 1:
        # Logarithmic like the x axis, so that the ideal is a straight line; the ticks are the ideal values.
        axes.set_yscale("log", base=2)
        axes.set_yticks([each * n for n in nodes], [number(each * n) for n in nodes])
        axes.margins(x=0.08, y=0.12)
    _finish(axes, rungs, legend="upper left")


def _efficiency(axes: Any, rungs: Sequence[Rung], base: Rung) -> None:
    nodes = [rung.nodes for rung in rungs]
    axes.axhline(GOOD, color=_RED, linestyle="--", linewidth=1.2, label=f"{GOOD}: good scaling")
    axes.plot(
        nodes, [_or_gap(rung.efficiency) for rung in rungs], "o-", color=_BLUE, label="measured"
    )
    for rung in rungs:
        if rung.efficiency is not None:
            below = rung.efficiency < GOOD
            _note(axes, rung.nodes, rung.efficiency, f"{rung.efficiency:.2f}", below=below)
    axes.set_title(f"efficiency, relative to {base.nodes} node{'s' * (base.nodes > 1)}")
    axes.set_ylabel("speed-up ÷ nodes")
    axes.set_ylim(0, max(1.15, *(1.1 * (rung.efficiency or 0.0) for rung in rungs)))
    _finish(axes, rungs, legend="lower left")


def _note(axes: Any, x: float, y: float, text: str, *, below: bool) -> None:
    offset = (0, -14 if below else 7)
    axes.annotate(text, (x, y), textcoords="offset points", xytext=offset, ha="center", fontsize=8)


def _or_gap(value: float | None) -> float:
    return math.nan if value is None else value


def _finish(axes: Any, rungs: Sequence[Rung], legend: str) -> None:
    nodes = [rung.nodes for rung in rungs]
    if len(nodes) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(nodes, [str(n) for n in nodes])
    axes.minorticks_off()
    failed = [rung.nodes for rung in rungs if rung.throughput is None]
    if failed:
        along = axes.get_xaxis_transform()
        axes.plot(failed, [0.03] * len(failed), "x", color=_RED, label="failed", transform=along)
    axes.set_xlabel("nodes")
    axes.grid(alpha=0.25)
    axes.legend(loc=legend, fontsize=8)
