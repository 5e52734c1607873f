"""The output of tasks, and everything that flowlite prints.

Text from nodes, hosts and clouds must not act on the terminal. Everything is printed through `printing.py`, which
removes characters that a terminal would act on and the values of secrets (`redact.py`). flowlite's own colours are
`Painted` parts, which are kept. In notebooks, every text is escaped (`html.py`). Somebody who waits is told why
(`slow_notice.py`).

Output is stored byte for byte (`stream_file.py`), with an index of the times at which it was seen (`time_index.py`),
and labelled and cleaned when it is read (`reader.py`). `log_files.py` has the names of the files. How the bytes get
into these files is not this room's: `node/log_stream` and `supervise/attempt/log_writer.py`.

Imports `errors` and `terminal`. Start with `reader.py` for logs, with `printing.py` for what is printed.
"""
