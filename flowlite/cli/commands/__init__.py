"""The commands of `flow`, one module for each group. `flowlite.cli.COMMANDS` names the module of each command."""
