"""For authors of provider adapters: `flowlite.testing.conformance` holds an adapter to the contract. Needs pytest."""

from __future__ import annotations

import pytest

# These are no test files of the project that uses them, and still their failures should explain themselves.
pytest.register_assert_rewrite(
    "flowlite.testing.launching",
    "flowlite.testing.reaching",
    "flowlite.testing.streams",
    "flowlite.testing.storing",
    "flowlite.testing.running",
    "flowlite.testing.failing",
)
