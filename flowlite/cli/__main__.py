"""Runs `flow` as `python -m flowlite.cli`, for a checkout that is not installed."""

from __future__ import annotations

import sys

from flowlite.cli import program

if __name__ == "__main__":
    sys.exit(program())
