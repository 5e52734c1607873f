"""Testing with flowlite: the conformance suite for adapters, test hosts, and clouds in a box.

`conformance` needs pytest (extra `testing`); `hosts` and `cloud` need Linux and root, and `cloud` the extra `box`.
"""

from __future__ import annotations

import sys

# Failures of these tests show the values that were compared, although the modules belong to no test suite.
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite(
        "flowlite.testing.launching",
        "flowlite.testing.reaching",
        "flowlite.testing.streams",
        "flowlite.testing.storing",
        "flowlite.testing.running",
        "flowlite.testing.failing",
    )
