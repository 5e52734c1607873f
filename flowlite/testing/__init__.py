"""For those who test with flowlite: adapters held to the contract, machines to test against, and clouds in a box.

`conformance` needs pytest (extra `testing`); `hosts` and `cloud` need Linux and root, and `cloud` the extra `box`.
"""

from __future__ import annotations

import sys

# These are no test files of the project that uses them, and still their failures should explain themselves.
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite(
        "flowlite.testing.launching",
        "flowlite.testing.reaching",
        "flowlite.testing.streams",
        "flowlite.testing.storing",
        "flowlite.testing.running",
        "flowlite.testing.failing",
    )
