"""The script that a rented machine runs at its first boot (POSIX shell).

1. starts the watchdog, which ends the machine without help from outside (`watchdog.py`)
2. authorizes our public key for the login user
3. installs the host key that the client has pinned and reloads sshd: the login works once that key is presented
4. runs the provider's commands
"""

from __future__ import annotations

import re

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from provider_adapters.rented import watchdog
from provider_adapters.rented.keys import KeyPair

LONGEST = 9500
"""Maximum length in characters; the tightest limit of a cloud is 10,000."""
HOST_KEY_TOOL = f"{watchdog.DIRECTORY}/hostkey"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

# Gives sshd another ed25519 key; the path of the key is taken from sshd's own configuration.
_TOOL = """\
#!/bin/sh
# flowlite: sshd shows the private key in file $1 from now on.
w=/var/lib/flowlite/where new=$1
PATH=$PATH:/usr/sbin:/sbin
if ! [ -s $w ]; then
  c=
  for f in $(grep -lx sshd /proc/[0-9]*/comm 2>/dev/null); do
    set -- $(tr '\\0' ' ' <"${f%comm}cmdline")
    while [ $# -gt 1 ]; do [ "$1" = -f ] && c=$2; shift; done
  done
  said=$(sshd -T ${c:+-f "$c"} 2>/dev/null)
  k=$(echo "$said" | sed -n 's/^hostkey //p' | grep ed25519 | head -n 1)
  p=$(echo "$said" | sed -n 's/^pidfile //p')
  printf '%s\\n' "${k:-/etc/ssh/ssh_host_ed25519_key}" "${p:-/run/sshd.pid}" >$w
fi
{ read -r k; read -r p; } <$w
umask 077
cat "$new" >"$k.flow" && mv -f "$k.flow" "$k" || exit 1
rm -f "$k.pub" "$k-cert.pub"
command -v restorecon >/dev/null && restorecon "$k"
systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null ||
 kill -HUP "$(cat "$p" 2>/dev/null)" 2>/dev/null
exit 0
"""

_SCRIPT = """\
#!/bin/sh
# flowlite: the first boot of a rented machine.
umask 077
u=%(user)s
mkdir -p %(directory)s /run/flowlite
%(watchdog)s
id $u >/dev/null 2>&1 || useradd -m -s /bin/bash $u
chown $u /run/flowlite
h=$(getent passwd $u | cut -d: -f6)
mkdir -p "$h/.ssh"
k=$h/.ssh/authorized_keys
touch "$k"
cat - "$k" >"$k.new" <<'FLOWLITE'
%(authorized)s
FLOWLITE
mv "$k.new" "$k"
chmod 700 "$h/.ssh"
chmod 600 "$k"
chown -R $u "$h/.ssh"
cat >%(tool_at)s <<'FLOWLITE'
%(tool)sFLOWLITE
cat >%(directory)s/first <<'FLOWLITE'
%(private)sFLOWLITE
sh %(tool_at)s %(directory)s/first
rm -f %(directory)s/first
%(extra)s"""


@dataclass(frozen=True, slots=True)
class Boot:
    """The values of one launch's script.

    Attributes:
        host_key: The throw-away key of the launch.
        authorized: Our public keys.
        user: The login user, created if missing. Any user but root needs sudo without a password.
        boot_lease: Seconds without an agent after which the machine ends itself.
        deadline: Seconds of running after which it ends itself, even if the lease is renewed; None for no limit.
        before_end: Shell commands that run before power off, for a minute at most, for what power off alone does not
            end.
        extra: Shell commands of the provider, run last.
    """

    host_key: KeyPair
    authorized: tuple[str, ...]
    user: str = "root"
    boot_lease: float = 1800.0
    deadline: float | None = None
    before_end: str = ""
    extra: str = ""


def boot_script(boot: Boot) -> str:
    """Renders the script. Pure: the same values give the same text.

    Raises:
        ConfigError: It would be longer than `LONGEST` characters, or the user name is invalid.
    """
    if not _USER.fullmatch(boot.user):
        raise ConfigError(f"user: {boot.user!r} is not the name of a user on Linux")
    text = _SCRIPT % {
        "user": boot.user,
        "directory": watchdog.DIRECTORY,
        "watchdog": watchdog.installation(boot.boot_lease, boot.deadline, boot.before_end),
        "authorized": "\n".join(boot.authorized),
        "tool_at": HOST_KEY_TOOL,
        "tool": _TOOL,
        "private": boot.host_key.private,
        "extra": f"{boot.extra.rstrip()}\n" if boot.extra else "",
    }
    if len(text) > LONGEST:
        ours = len(text) - len(boot.extra) - len(boot.before_end)
        raise ConfigError(
            f"the script for the machines' first boot has {len(text)} characters, of which {ours} are flowlite's; "
            f"clouds take {LONGEST}. Shorten what is run at the first boot"
        )
    return text
