"""Checks whether Slurm can be used from here, without submitting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.errors import FlowError
from flowlite.provider import Finding
from provider_adapters.slurm import shared
from provider_adapters.slurm.login import SlurmUnreachable, ToolMissing, last_line

if TYPE_CHECKING:
    from provider_adapters.slurm.context import SlurmContext


def check(place: SlurmContext) -> list[Finding]:
    """One finding for each check; checks that depend on a failed one are left out."""
    try:
        settings = place.settings
        login = place.login()
        facts = login.facts
        version = login.ask("sbatch", "--version").strip()
    except FlowError as error:
        return [Finding("Slurm's commands", False, str(error))]
    found = [Finding("Slurm's commands", True, f"{version} on {facts.host}, as {facts.user}")]
    try:
        text = login.ask("scontrol", "ping").strip()
        found.append(Finding("slurmctld", "UP" in text, text.splitlines()[0]))
    except FlowError as error:
        return [*found, Finding("slurmctld", False, str(error))]
    found.append(_trial(place))
    found.append(_accounting(place))
    if settings.shared_dir:
        where = shared.expanded(settings.shared_dir, facts.home, facts.uid)
        told = {
            None: "no job has looked yet whether all nodes see it; the first one will",
            True: "the nodes of the last job see it",
            False: "the nodes of the last job do not see it: volumes cannot be used, and files go to each node",
        }[place.proof().of(where)]
        found.append(
            Finding(f"shared directory {where}", place.proof().of(where) is not False, told)
        )
    return found


def _trial(place: SlurmContext) -> Finding:
    """Whether a job with the options of the settings would be accepted."""
    login = place.login()
    asked = {**login.defaults, **place.settings.options}
    names = ("partition", "account", "qos", "constraint", "reservation")
    options = [f"--{name}={asked[name]}" for name in names if asked.get(name)]
    try:
        done = login.try_("sbatch", "--test-only", *options, input=b"#!/bin/sh\n")
    except FlowError as error:
        return Finding("a job would be taken", False, str(error))
    return Finding("a job would be taken", not done.code, last_line(done))


def _accounting(place: SlurmContext) -> Finding:
    """Whether accounting is available. Only the outcome of jobs that ended long ago depends on it."""
    try:
        done = place.login().try_("sacct", "-n", "-X", "-S", "now-1hours")
    except (SlurmUnreachable, ToolMissing) as error:
        return Finding("accounting", True, f"{error}; it is not needed")
    told = "sacct answers" if not done.code else f"{last_line(done)}; it is not needed"
    return Finding("accounting", True, told)
