"""The watchdog of a rented machine, as shell text: it powers the machine off without help from outside.

It does so when the machine has run for longer than its deadline, or when its lease was not renewed. The lease is a file
with the uptime, in whole seconds, until which it is valid; the agent writes it. Wall clock time is not used, so a clock
that is wrong or is set changes nothing. The time that the machine ran before a reboot is remembered and counts.

    /var/lib/flowlite/      root's
        watchdog  deadline  before-end      the loop; seconds of running; what is run before power off
        before-seconds                      how long that may take; a minute without it
        used  why                           seconds that have run; why it ended
    /run/flowlite/lease     the agent's
"""

from __future__ import annotations

import math

DIRECTORY = "/var/lib/flowlite"
LEASE_FILE = "/run/flowlite/lease"
LOOK_SECONDS = 2
BEFORE_END_SECONDS = 60

_LOOP = """\
#!/bin/sh
# flowlite: ends this machine when its time is over, or when nobody has renewed its lease.
d=%(directory)s lease=%(lease)s
echo -1000 2>/dev/null >/proc/self/oom_score_adj
now() { read u _ </proc/uptime; u=${u%%%%.*}; }
number() { v=; read v _ 2>/dev/null <"$1"; case $v in *[!0-9]*) v=;; esac; }
off() { command -v $1 >/dev/null && { "$@" >/dev/null 2>&1 & sleep 5; }; }
end() {
  echo "$1" >$d/why
  echo "flowlite: $1; this machine ends now" 2>/dev/null >/dev/console
  if [ -s $d/before-end ]; then
    sh $d/before-end >>$d/log 2>&1 &
    p=$! i=0
    number $d/before-seconds
    while [ $i -lt ${v:-%(before)d} ] && kill -0 $p 2>/dev/null; do sleep 1; i=$((i + 1)); done
    kill -9 $p 2>/dev/null
  fi
  sync &
  sleep 1
  while :; do
    off systemctl poweroff -ff
    off poweroff -f
    off python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
    off sh -c 'echo o >/proc/sysrq-trigger'
  done
}
now; start=$u saved=$u until=$((u + %(boot)d))
number $d/used; before=${v:-0}
rm -f $lease
while :; do
  now; used=$((before + u - start))
  number $lease; until=${v:-$until}
  number $d/deadline
  [ -n "$v" ] && [ $used -ge "$v" ] && end "its longest time, $v s, is over"
  [ $u -ge "$until" ] && end "nobody renewed its lease"
  if [ $((u - saved)) -ge 30 ]; then
    saved=$u; echo $used >$d/used.new && mv -f $d/used.new $d/used
  fi
  sleep %(look)d
done
"""

# Without its limit, systemd gives up after five starts in ten seconds: the shell ends where no process can be made.
_UNIT = """\
[Unit]
Description=flowlite: ends this machine when nobody needs it any more
DefaultDependencies=no
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh %(directory)s/watchdog
Restart=always
RestartSec=1
OOMScoreAdjust=-1000
[Install]
WantedBy=sysinit.target
"""

_START = """\
cat >%(directory)s/watchdog <<'FLOWLITE'
%(loop)sFLOWLITE
%(files)sif [ -d /run/systemd/system ]; then
  cat >/etc/systemd/system/flowlite-watchdog.service <<'FLOWLITE'
%(unit)sFLOWLITE
  systemctl daemon-reload
  systemctl enable flowlite-watchdog
  systemctl start --no-block flowlite-watchdog && started=1
fi
[ "$started" ] || setsid sh %(directory)s/watchdog </dev/null >/dev/null 2>&1 &
"""


def loop(boot_lease: float) -> str:
    """The watchdog's script."""
    return _LOOP % {
        "directory": DIRECTORY,
        "lease": LEASE_FILE,
        "before": BEFORE_END_SECONDS,
        "boot": math.ceil(boot_lease),
        "look": LOOK_SECONDS,
    }


def installation(boot_lease: float, deadline: float | None, before_end: str) -> str:
    """Shell commands that install and start it; `DIRECTORY` must exist."""
    files = "" if deadline is None else f"echo {math.ceil(deadline)} >{DIRECTORY}/deadline\n"
    if before_end:
        files += f"cat >{DIRECTORY}/before-end <<'FLOWLITE'\n{before_end.rstrip()}\nFLOWLITE\n"
    return _START % {
        "directory": DIRECTORY,
        "loop": loop(boot_lease),
        "files": files,
        "unit": _UNIT % {"directory": DIRECTORY},
    }
