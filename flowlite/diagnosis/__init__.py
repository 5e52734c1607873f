"""Diagnoses why a gang hangs or failed: groups stacks, compares nodes, recognises known failures. Pure, without I/O.

    hang.py        the stacks of all ranks: which ranks wait in the same collective, and which one they wait for
    findings.py    what differs between nodes: links, GPUs, processes that are stuck, variables; a sentence for each
    advice.py      messages of libraries that are known, with what to do; `docs/troubleshooting.md` has a row for each

Reports of nodes go in (the subcommand `look`, `node/inspect/look.py`), values and sentences come out. `flow doctor`
(`cli/commands/doctor.py`) collects the reports and prints; `api/failures.py` adds advice to a `TaskFailed`.

Imports nothing but itself. Start with `hang.py`. To add a known failure, add an entry to `SYMPTOMS` in `advice.py`
and a row to the page; a test in `tests/troubleshooting` provokes it.
"""
