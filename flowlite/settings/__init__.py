"""Settings: keyword, variable, `flow.toml`, `config.toml`, default; and which of a project's file need trust.

Files and variables are read where a task is submitted, and by nobody after that. `Provider.freeze` makes the settings
of that moment mean the same anywhere, and the plan carries them (provider_settings.py). An import contract keeps
adapters and the supervisor from `settings.py`.
"""
