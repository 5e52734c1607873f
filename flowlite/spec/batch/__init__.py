"""Reads Slurm batch scripts: `read_batch` turns a script into configurations.

`script.py` splits the `#SBATCH` lines as sbatch does. `table.py` has every option of sbatch, by how it is handled;
`config.py` maps each to an option of tasks, and writes a note on one that has no effect. `resources.py` finds GPUs,
cores and memory of each node from the several ways to ask for them, `values.py` parses arrays, sizes and signals, and
`missing_commands.py` names commands of the script that will not be on the nodes.

Pure: nothing is submitted, and nothing of the script is run. What `srun` does inside of it is `node/sbatch`, whose
parsers are used here, too.

Imports `spec`, `errors`, `settings` and `node/sbatch`. Start with `config.py`.
"""

from flowlite.spec.batch.config import Reading, read_batch
from flowlite.spec.batch.script import BatchScript, looks_like_batch

__all__ = ["BatchScript", "Reading", "looks_like_batch", "read_batch"]
