"""Process-wide settings made in a notebook's cells: recorded where the task is submitted, and applied in workers.

A program's file makes its settings again when a worker loads it. A notebook has no file, and its cells cannot be run
again, so its settings are read from the process itself. Defaults of Python and torch are not recorded.
"""

from __future__ import annotations

import sys

from . import renewed_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TORCH_DEFAULT_DTYPE = "torch.float32"
_WARNING = 30


def note_settings(*, torch_too: bool) -> dict[str, Any]:
    """Returns the settings of this process, as JSON; those of torch only if workers import it."""
    noted: dict[str, Any] = {}
    torch = sys.modules.get("torch") if torch_too else None
    if torch is not None:
        if str(torch.get_default_dtype()) != _TORCH_DEFAULT_DTYPE:
            noted["torch_default_dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
        if renewed_modules.is_torch_seeded():
            noted["torch_seed"] = torch.initial_seed()
        if torch.get_float32_matmul_precision() != "highest":
            noted["torch_matmul_precision"] = torch.get_float32_matmul_precision()
        if torch.are_deterministic_algorithms_enabled():
            noted["torch_deterministic"] = {
                "warn_only": torch.is_deterministic_algorithms_warn_only_enabled()
            }
    if logging := _note_logging():
        noted["logging"] = logging
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing and (method := multiprocessing.get_start_method(allow_none=True)):
        noted["start_method"] = method
    return noted


def make_settings(noted: dict[str, Any]) -> None:
    """Applies the settings of `note_settings` to this process."""
    if any(name.startswith("torch_") for name in noted):
        import torch  # type: ignore[import-not-found, unused-ignore]

        if "torch_default_dtype" in noted:
            torch.set_default_dtype(getattr(torch, noted["torch_default_dtype"]))
        if "torch_seed" in noted:
            torch.manual_seed(noted["torch_seed"])
        if "torch_matmul_precision" in noted:
            torch.set_float32_matmul_precision(noted["torch_matmul_precision"])
        if "torch_deterministic" in noted:
            torch.use_deterministic_algorithms(True, **noted["torch_deterministic"])
    if "logging" in noted:
        _make_logging(noted["logging"])
    if "start_method" in noted:
        import multiprocessing

        multiprocessing.set_start_method(noted["start_method"], force=True)


def _note_logging() -> dict[str, Any] | None:
    """Returns the level and the streams of the root logger, as `logging.basicConfig` sets them."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    root = logging.getLogger()
    streams = []
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler and type(handler.formatter) is logging.Formatter:
            name = "stdout" if handler.stream is sys.stdout else "stderr"
            made = handler.formatter
            style = type(made._style).__name__
            streams.append([name, handler.level, style, made._style._fmt, made.datefmt])
    if not streams and root.level == _WARNING:
        return None
    return {"level": root.level, "streams": streams}


def _make_logging(noted: dict[str, Any]) -> None:
    import logging

    root = logging.getLogger()
    root.setLevel(noted["level"])
    for name, level, style, form, dates in noted["streams"]:
        handler = logging.StreamHandler(getattr(sys, name))
        handler.setLevel(level)
        styles = (logging.PercentStyle, logging.StrFormatStyle, logging.StringTemplateStyle)
        made = logging.Formatter(datefmt=dates)
        made._style = {each.__name__: each for each in styles}[style](form)
        handler.setFormatter(made)
        root.addHandler(handler)
