"""Runs `flow` as `python -m flowlite`, for an environment whose programs are not on the PATH."""

from __future__ import annotations

import sys

from flowlite.cli import program

if __name__ == "__main__":
    sys.exit(program())
