"""Sweeps: `function.map` and `function.starmap`, one task per element.

`sweep_method.py` is what users call. `sweep.py` starts the tasks, a few at a time, and yields their results in the
order of the calls. It knows nothing of functions, so array jobs of batch scripts use it as well. `async_sweep.py`
does the same from an event loop, without a thread that waits. What is submitted comes from `flowlite/api/remote.py`.

How the tasks of a sweep share machines or a job array is not known here: providers do that
(`provider_adapters/rented/kept_gangs.py`, `provider_adapters/slurm/arrays.py`).

These modules are carried to the nodes (`in_worker/on_node.py`), since a decorated module is imported there. They
import only the standard library and what is carried, too. Start with `sweep.py`.
"""
