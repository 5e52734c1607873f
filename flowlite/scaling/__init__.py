"""Measures scaling efficiency: repeats a run on more and more nodes, and compares a number that it reports.

    metric.py     finds the number in the result of a function, or in the output of the workers
    ladder.py     one `Run` per task, one `Rung` per number of nodes: throughput, speed-up, efficiency
    files.py      the table as CSV, JSON and text, and the directory of a ladder
    chart.py      bars for a terminal
    picture.py    a picture with matplotlib, if that is installed

Pure but for the files that it writes. It submits nothing: `cli/commands/scale.py` runs the tasks and hands their
values in. Only the picture needs a library (extra `plot`), which is imported last.

Imports `errors`, `output` and `terminal`. Start with `ladder.py`.
"""
