"""The commands that run on a machine at first contact: they collect its facts and give it a host key of its own.

The machine creates that key and prints its public half. The client pins it durably beside the throw-away key, and only
then has sshd switch to it. After a crash at any point, the machine's key is therefore among the pinned ones.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from flowlite.errors import ProviderError
from flowlite.node.quick_dataclass import dataclass
from provider_adapters import remote_commands
from provider_adapters.rented.userdata import HOST_KEY_TOOL
from provider_adapters.rented.watchdog import DIRECTORY

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

_SECONDS = 60.0
_AS_ROOT = "s=; [ \"$(id -u)\" = 0 ] || s='sudo -n'\n"
_OWN_KEY = f"""\
cd {DIRECTORY} || exit 1
if [ -s shown ]; then echo "shown $(cat shown)"; exit; fi
if ! [ -s own.pub ]; then
  rm -f own own.new own.new.pub
  ssh-keygen -q -t ed25519 -N "" -C flowlite -f own.new </dev/null >&2 || exit 1
  mv own.new own && mv own.new.pub own.pub || exit 1
fi
echo "own $(cat own.pub)"
"""
_CHANGE_OVER = f"""\
cd {DIRECTORY} || exit 1
[ -s shown ] || {{ sh {HOST_KEY_TOOL} own && mv own.pub shown && rm -f own; }}
"""
# The search ends at the first Python of the required minor version; images made for training have it under /opt.
_FACTS = """\
m=$1; shift
a=${SSH_CONNECTION#* * }; echo "address ${a% *}"
echo "machine $(uname -m)"; echo "home $HOME"
for p in "$@" /opt/pytorch/bin/python3 /opt/conda/bin/python3 python$m python3 /usr/bin/python3 \\
    /usr/local/bin/python3 /usr/local/bin/python3.1[1-9] /usr/bin/python3.1[1-9] /opt/*/bin/python3 \\
    "$HOME"/.flowlite/envs/python/cpython-*/bin/python3 "$HOME"/.pyenv/versions/*/bin/python3; do
  v=$("$p" -I -S -c 'import sys; v = sys.version_info
sys.implementation.name == "cpython" and print("python %d.%d.%d" % v[:3], sys.executable)' 2>/dev/null </dev/null)
  [ "$v" ] || continue
  echo "$v"
  case $v in "python $m."*) [ "$m" ] && break;; esac
done
"""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts of a machine.

    Attributes:
        key: The public half of its own host key.
        pythons: Path and version of the interpreters found, the preferred one first.
        address: Its own address on the interface through which the client connected.
        machine: The output of `uname -m`.
        root: Absolute path of flowlite's directory on it.
    """

    key: str
    pythons: tuple[tuple[str, str], ...] = ()
    address: str = ""
    machine: str = ""
    root: str = ""


def ask(connection: Connection, name: str, minor: str | None) -> MachineFacts:
    """Collects a machine's facts with one command. Raises NodeUnreachable, ProviderError."""
    script = f"{_AS_ROOT}$s sh -c '{_OWN_KEY}' </dev/null || exit 1\n{_FACTS}"
    argv = ["sh", "-c", script, "sh", minor or "", sys.executable]
    done = remote_commands.run(connection, argv, _SECONDS)
    said = done.stdout.decode("utf-8", "replace")
    lines = [line.partition(" ")[::2] for line in said.splitlines()]
    key = next((value for word, value in lines if word in ("own", "shown")), "")
    if not re.match("ssh-ed25519 ", key):
        why = remote_commands.said(done)
        raise ProviderError(f"{name} makes no host key of its own (exit code {done.code}): {why}")
    first = dict(reversed(lines))
    pythons = [value.partition(" ")[::2] for word, value in lines if word == "python"]
    return MachineFacts(
        key=" ".join(key.split()[:2]),
        pythons=tuple(dict.fromkeys((path, version) for version, path in pythons)),
        address=first.get("address", ""),
        machine=first.get("machine", ""),
        root=f"{first.get('home', '')}/.flowlite",
    )


def change_over(connection: Connection, name: str) -> None:
    """Has sshd present the machine's own key from now on. Raises NodeUnreachable, ProviderError."""
    argv = ["sh", "-c", f"{_AS_ROOT}$s sh -c '{_CHANGE_OVER}'"]
    done = remote_commands.run(connection, argv, _SECONDS)
    if done.code != 0:
        raise ProviderError(
            f"{name}: its host key cannot be replaced: {remote_commands.said(done)}"
        )
