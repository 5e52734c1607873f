"""Calls and results as files.

A file is an envelope (`envelope.py`): a JSON header, parts aligned to 64 bytes so that arrays can be used directly in
the mapped file, and a SHA-256 over everything. `pickling.py` keeps large memory out of pickles; `type_syntax.py` is for
`type` aliases and type parameters in them. `safe.py` and its helpers implement the plain form (`results="plain"`), a
JSON document with raw memory beside it, which cannot execute code. `remote_exception.py` makes exceptions portable.

The source of a program's file is sent along and loaded as `__main__` after the fork (`main_module.py`), so a warm fork
server never holds a program. Comparisons of `__name__` at the top level have the results that they have in a
multiprocessing child.
"""
