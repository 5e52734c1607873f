"""Settings from keywords, variables, `flow.toml`, `config.toml` and defaults, and trust in a project's file.

Files and variables are read only when a task is submitted. `Provider.freeze` makes the settings independent of the
directory and environment, and the plan carries them (`provider_settings.py`). An import contract keeps adapters and the
supervisor from importing `settings.py`.
"""
