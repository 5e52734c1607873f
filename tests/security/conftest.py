"""Fixtures of other rooms that attacks need, too."""

from tests.cli.conftest import flow

__all__ = ["flow"]
