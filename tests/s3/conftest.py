"""Nobody's own AWS settings count in this room."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_settings(no_aws_settings: None) -> None:
    return None
