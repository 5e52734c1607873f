"""Sweeps: `function.map` and `function.starmap`, one task per element.

`sweep_method.py` is what users call. `sweep.py` starts the tasks and yields their results in order; it knows nothing
of functions, so that array jobs of batch scripts use it as well. `async_sweep.py` does the same from an event loop. What
is submitted comes from `flowlite/api/remote.py`. All of them are carried to the nodes (`in_worker/on_node.py`), where a
decorated module is imported, so they import nothing but the standard library and what is carried, too.
"""
