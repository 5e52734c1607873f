"""`flow aws`: commands that only apply to EC2."""

from __future__ import annotations

import json
from typing import Any

import typer

from flowlite.cli import output

aws = typer.Typer(no_args_is_help=True)


# Without a callback, typer drops the command name of a group with one command.
@aws.callback()
def _group() -> None:
    """EC2: the permissions that flowlite needs."""


@aws.command()
def policy() -> None:
    """Print the least IAM policy that flowlite needs, as JSON."""
    from flowlite.api.adapters import adapter

    # `Any`, since the method is not part of the contract of providers.
    chosen: Any = adapter("aws")
    output.say(json.dumps(chosen.policy(), indent=2))
