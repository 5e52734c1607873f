"""Settings from keywords, variables, `flow.toml`, `config.toml` and defaults, and trust in a project's file.

`settings.py` finds and orders them, `parse.py` checks values, `trust.py` keeps a project's `flow.toml` from naming
programs and directories before the user trusts it, `credentials.py` finds API keys of providers, and
`flow_home.py` has FLOW_HOME, with all files below it. `private_files.py` writes files that only their owner can read.
`request_log.py` is `flow --debug`, `ssh_agent.py` knows the agent of the latest login, and `http_proxy.py` the way to a
URL.

Files and variables are read only when a task is submitted. `Provider.freeze` makes the settings independent of the
directory and environment, and the plan carries them (`provider_settings.py`). An import contract keeps adapters and
the supervisor from importing `settings.py`.

Imports `errors` and `output`. Start with `settings.py`.
"""
