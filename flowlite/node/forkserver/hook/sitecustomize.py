"""Holds a starting Python before it runs its script, and makes it the fork server (`paused_python.py`).

The directory of this file is first in PYTHONPATH of such a Python only. `site` imports it when everything is set up but
the script. In a worker that was forked here, `hold` returns, and this Python goes on to run the script.
"""

import os
import sys


def _begin() -> None:
    above, package = os.environ["FLOW_PAUSED"].split("\n")
    sys.path.insert(0, above)
    try:
        paused = __import__(f"{package}.forkserver.paused_python", fromlist=["hold"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    paused.hold(os.path.dirname(__file__), above)


_begin()
if sys.modules[__name__].__spec__ is __spec__:
    # There is no other sitecustomize. To `site` this one does not exist either.
    raise ImportError(name="sitecustomize")
