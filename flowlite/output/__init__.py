"""Lines of a task, and everything that flowlite prints.

Texts of nodes, hosts and clouds are only data to the terminal. Everything goes through `printing.py`, which removes
what a terminal acts on and the values of secrets (redact.py). Our own colours are `Painted` parts, so they survive.
Lines are kept byte for byte (stream_file.py), and labelled and cleaned when they are read (reader.py).
"""
