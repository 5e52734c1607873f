"""Sweeps: `function.map` and `function.starmap`, one task per element.

`sweep_method.py` is what users call. `sweep.py` starts the tasks and yields their results in order. It knows nothing of
functions, so array jobs of batch scripts use it as well. `async_sweep.py` does the same from an event loop. What is
submitted comes from `flowlite/api/remote.py`. These modules are carried to the nodes (`in_worker/on_node.py`), since a
decorated module is imported there, so they import only the standard library and what is carried, too.
"""
