"""Calls and results as files.

A file is an envelope (envelope.py): a JSON header, parts aligned to 64 bytes so that arrays are used where they are
in the mapped file, and a SHA-256 over everything. `pickling.py` keeps large memory out of pickles; `safe*.py` is the
form that cannot execute code (`results="plain"`); `remote_exception.py` makes an exception portable.

A program's file travels with its source and is loaded as `__main__` after the fork (main_module.py), so a warm fork
server never holds a program. Comparisons of `__name__` at the top level come out as in a child of multiprocessing.
"""
