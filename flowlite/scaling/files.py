"""The files of a scaling ladder: tables for programs and people, and their directory."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.scaling.chart import number
from flowlite.scaling.ladder import GOOD, Rung

JSON_FILE, CSV_FILE, PNG_FILE, TEXT_FILE = "scale.json", "scale.csv", "scale.png", "scale.txt"
COLUMNS = (
    "nodes", "workers", "throughput", "speed_up", "efficiency", "lowest", "highest", "runs", "reason",
)  # fmt: skip


def directory_for(given: Path | None, name: str) -> Path:
    """The directory to write to: the given one, else a new one in the current directory.

    Raises:
        ConfigError: It cannot be created or written to.
    """
    directory, number = given or Path(f"scale-{name}"), 1
    try:
        while not _is_made(directory, new=given is None):
            number += 1
            directory = Path(f"scale-{name}-{number}")
        (directory / JSON_FILE).touch()
    except OSError as error:
        raise ConfigError(
            f"--output: {directory} cannot be written to: {error.strerror or error}"
        ) from error
    return directory


def _is_made(directory: Path, *, new: bool) -> bool:
    """Creates a directory. False if it has to be new, and something has its name. Raises OSError."""
    try:
        directory.mkdir(parents=True, exist_ok=not new)
    except FileExistsError:
        if not new:
            raise
        return False
    return True


def document(rungs: Sequence[Rung], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole ladder, as `--json` prints it and the JSON file has it."""
    return {**about, "good_efficiency": GOOD, "rungs": [rung.to_json() for rung in rungs]}


def write_tables(directory: Path, rungs: Sequence[Rung], about: Mapping[str, Any]) -> None:
    """Writes the JSON and the CSV file. Each is replaced atomically, so that readers never see half a file."""
    text = json.dumps(document(rungs, about), indent=2, ensure_ascii=False) + "\n"
    _replace(directory / JSON_FILE, text)
    _replace(directory / CSV_FILE, as_csv(rungs))


def as_csv(rungs: Sequence[Rung]) -> str:
    """The ladder as CSV, with one row for each rung."""
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rung in rungs:
        values = rung.values
        row = (
            rung.nodes,
            rung.workers,
            rung.throughput,
            rung.speed_up,
            rung.efficiency,
            min(values, default=None),
            max(values, default=None),
            len(rung.runs),
            rung.reason,
        )
        writer.writerow("" if cell is None else cell for cell in row)
    return held.getvalue()


def as_table(rungs: Sequence[Rung], metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows for people; columns that would be empty are left out."""
    repeated = any(len(rung.runs) > 1 for rung in rungs)
    failed = any(rung.reason for rung in rungs)
    columns = ["nodes", "workers", metric]
    columns += ["lowest - highest"] * repeated + ["speed-up", "efficiency"] + ["reason"] * failed
    rows = []
    for rung in rungs:
        row = [str(rung.nodes), str(rung.workers), _cell(rung.throughput, number)]
        if repeated:
            row.append(
                " - ".join(number(end(rung.values)) for end in (min, max)) if rung.values else "-"
            )
        row += [_cell(rung.speed_up, "{:.2f}".format), _cell(rung.efficiency, "{:.2f}".format)]
        rows.append(row + [printable(rung.reason)] * failed)
    return columns, rows


def _cell(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def printable(text: str) -> str:
    """The first line of a text, without characters that a terminal would act on."""
    first = text.strip().partition("\n")[0]
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in first
    )


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
