"""The adapters that come with flowlite, each found by its entry point (`[project.entry-points]` in `pyproject.toml`).

    local/      directories and processes of this machine
    ssh/        pools of hosts that the user can log in to
    slurm/      nodes of a Slurm job
    aws/        EC2 instances
    mithril/    machines of spot bids
    rented/     what `aws` and `mithril` share: ledger, first contact, watchdog, kept machines

In each, `provider.py` is the class of the contract (`flowlite/provider/contract.py`), and `planning.py` says what
would be launched. In most, `launching.py`, `listing.py` and `ending.py` do what they say, and `checking.py` checks
whether the provider can be used. `identity.py` has the id by which hosts and clouds know this FLOW_HOME, `durable.py`
files that survive a power failure, `locked_record.py` files that one process at a time rewrites, and `pythons.py`
the choice of a machine's Python. `remote_commands.py` runs commands on machines.

Adapters import the contract, `connect`, `spec`, `settings` (but not the files that users write), `state.clock` and
`node`; nothing in flowlite imports an adapter. `docs/providers/writing-an-adapter.md` builds one from nothing.
"""
