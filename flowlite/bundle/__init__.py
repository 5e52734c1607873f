"""A call made portable, and results read.

`call.py` serialises a call, `source.py` and `imports.py` find which of the project's modules travel, `agent_zip.py`
makes the node's program. Functions and classes that are found in the main program's file by name and by equal code
travel by reference (main_program.py); global variables travel only if code that nodes do not run may have changed
them, as read from the source (changes.py), since a rank or device that the top level computes is another on the node.
"""
