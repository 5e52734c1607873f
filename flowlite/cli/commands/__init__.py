"""The commands of `flow`, one module for each group. `flowlite.cli.COMMANDS` maps commands to modules."""
