"""Sets up the shell of a batch script: keeps our `srun` first in PATH, and defines `module`.

A login shell (`#!/bin/bash -l`) reads /etc/profile, which resets PATH. So does a script that sources it, or loads a
module of Slurm. bash reads the file that BASH_ENV names after the profile, and for every script that it starts. That
file sets a DEBUG trap, which puts our directory first in PATH before each command, also in functions and subshells, and
prints nothing under `set -x`. A login shell of another kind is started with a command line that repairs PATH before the
script runs.

sbatch hands on the shell function `module` of the shell that it is called from. Here the job gets nothing from there,
so the first call of `module` reads the profile, which defines it on machines that have modules.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from ..system import atomic_files
from .rendezvous_file import programs

_FILE = "bash_env"
_BASH = ("bash", "rbash")
# The profile resets PATH, and may end a script that has `set -eu`.
_MODULES = """\
if ! type module >/dev/null 2>&1; then
_flowlite_profile() {
unset -f module ml _flowlite_profile
local before=$PATH flags=$-
set +eux
if [ -r /etc/profile ]; then . /etc/profile; fi
PATH=$before:$PATH
case $flags in *e*) set -e ;; esac
case $flags in *u*) set -u ;; esac
case $flags in *x*) set -x ;; esac
}
module() { _flowlite_profile; module "$@"; }
ml() { _flowlite_profile; ml "$@"; }
fi
"""


def variables(attempt: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns PATH and BASH_ENV of the script and of its tasks."""
    directory = programs(attempt)
    path = environment.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    return {"PATH": f"{directory}:{path}", "BASH_ENV": str(directory / _FILE)}


def write_bash_env(attempt: Path, theirs: str) -> None:
    """Writes the file that BASH_ENV names.

    Args:
        attempt: The directory of the attempt.
        theirs: The earlier BASH_ENV, such as the file of a module system; it is read first.
    """
    directory = shlex.quote(str(programs(attempt)))
    file = programs(attempt) / _FILE
    read_theirs = ""
    if theirs and theirs != str(file):
        name = shlex.quote(theirs)
        read_theirs = f"if [ -r {name} ]; then . {name}; fi\n"
    repair = f"case ${{PATH-}} in {directory}:*) ;; *) PATH={directory}:${{PATH-}} ;; esac"
    trap = shlex.quote(f"{{ {repair}; }} 2>/dev/null")
    text = f"{read_theirs}{_MODULES}{repair}\nset -o functrace\ntrap {trap} DEBUG\n"
    atomic_files.place(text.encode(), str(file), 0o600)


def command(script: str, path: Path) -> list[str]:
    """Returns the command line that runs a script.

    It names the script's interpreter, since the directory may forbid execution by the kernel.

    Args:
        script: Its text.
        path: Its file, in the directory of our programs.
    """
    first = script.partition("\n")[0].removeprefix("#!").strip()
    program, _, argument = first.partition(" ")
    words = [program, *([argument.strip()] if argument.strip() else [])]
    shell = os.path.basename(program)
    if not shell.endswith("sh") or shell in _BASH or not _is_login(argument.strip()):
        return [*words, str(path)]
    directory = shlex.quote(str(path.parent))
    return [*words, "-c", f'PATH={directory}:$PATH; export PATH; . "$0"', str(path)]


def _is_login(argument: str) -> bool:
    return argument == "--login" or (
        argument.startswith("-") and argument[1:].isalpha() and "l" in argument
    )
