"""Has supervisors look at prices, and at machines that boot, as soon as a test asks for it."""

import os
import sys


def _hurry() -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from flowlite.supervise import provision

    provision._PRICES_EVERY = float(os.environ.get("RENTED_PRICES_EVERY", "300"))
    provision._FIRST_LOOK = float(os.environ.get("RENTED_LOOK_AT", "20"))


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv):
    _hurry()
