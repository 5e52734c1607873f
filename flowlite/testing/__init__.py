"""Testing with flowlite: the conformance suite for adapters, test hosts, and clouds in a box.

An adapter's author implements `ProviderUnderTest` (`subject.py`) and derives from `ProviderSuite` (`conformance.py`);
`launching.py`, `reaching.py`, `streams.py`, `storing.py`, `running.py` and `failing.py` are its groups of tests. Test
hosts (`hosts/`), a real Slurm on them (`slurm/`) and the clouds in a box (`cloud/`) stand in for machines, and can be
used by hand (`make hosts`, `make slurm`, `flow cloud-in-a-box`).

Nothing of flowlite imports this room. `conformance` needs pytest (extra `testing`); `hosts` and `cloud` need Linux
and root, and `cloud` the extra `box`. Start with `conformance.py`, or with `docs/testing.md`.
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
