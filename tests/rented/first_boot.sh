#!/bin/sh
# flowlite: the first boot of a rented machine.
umask 077
u=ubuntu
mkdir -p /var/lib/flowlite /run/flowlite
cat >/var/lib/flowlite/watchdog <<'FLOWLITE'
#!/bin/sh
# flowlite: ends this machine when its time is over, or when nobody has renewed its lease.
d=/var/lib/flowlite lease=/run/flowlite/lease
echo -1000 2>/dev/null >/proc/self/oom_score_adj
now() { read u _ </proc/uptime; u=${u%%.*}; }
number() { v=; read v _ 2>/dev/null <"$1"; case $v in *[!0-9]*) v=;; esac; }
off() { command -v $1 >/dev/null && { "$@" >/dev/null 2>&1 & sleep 5; }; }
end() {
  echo "$1" >$d/why
  echo "flowlite: $1; this machine ends now" 2>/dev/null >/dev/console
  if [ -s $d/before-end ]; then
    sh $d/before-end >>$d/log 2>&1 &
    p=$! i=0
    number $d/before-seconds
    while [ $i -lt ${v:-60} ] && kill -0 $p 2>/dev/null; do sleep 1; i=$((i + 1)); done
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
now; start=$u saved=$u until=$((u + 1801))
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
  sleep 2
done
FLOWLITE
echo 7200 >/var/lib/flowlite/deadline
cat >/var/lib/flowlite/before-end <<'FLOWLITE'
curl -X DELETE https://cloud.example/bid
FLOWLITE
if [ -d /run/systemd/system ]; then
  cat >/etc/systemd/system/flowlite-watchdog.service <<'FLOWLITE'
[Unit]
Description=flowlite: ends this machine when nobody needs it any more
DefaultDependencies=no
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh /var/lib/flowlite/watchdog
Restart=always
RestartSec=1
OOMScoreAdjust=-1000
[Install]
WantedBy=sysinit.target
FLOWLITE
  systemctl daemon-reload
  systemctl enable flowlite-watchdog
  systemctl start --no-block flowlite-watchdog && started=1
fi
[ "$started" ] || setsid sh /var/lib/flowlite/watchdog </dev/null >/dev/null 2>&1 &

id $u >/dev/null 2>&1 || useradd -m -s /bin/bash $u
chown $u /run/flowlite
h=$(getent passwd $u | cut -d: -f6)
mkdir -p "$h/.ssh"
k=$h/.ssh/authorized_keys
touch "$k"
cat - "$k" >"$k.new" <<'FLOWLITE'
ssh-ed25519 BBBB flowlite
ssh-ed25519 CCCC me
FLOWLITE
mv "$k.new" "$k"
chmod 700 "$h/.ssh"
chmod 600 "$k"
chown -R $u "$h/.ssh"
cat >/var/lib/flowlite/hostkey <<'FLOWLITE'
#!/bin/sh
# flowlite: sshd shows the private key in file $1 from now on.
w=/var/lib/flowlite/where new=$1
PATH=$PATH:/usr/sbin:/sbin
if ! [ -s $w ]; then
  c=
  for f in $(grep -lx sshd /proc/[0-9]*/comm 2>/dev/null); do
    set -- $(tr '\0' ' ' <"${f%comm}cmdline")
    while [ $# -gt 1 ]; do [ "$1" = -f ] && c=$2; shift; done
  done
  said=$(sshd -T ${c:+-f "$c"} 2>/dev/null)
  k=$(echo "$said" | sed -n 's/^hostkey //p' | grep ed25519 | head -n 1)
  p=$(echo "$said" | sed -n 's/^pidfile //p')
  printf '%s\n' "${k:-/etc/ssh/ssh_host_ed25519_key}" "${p:-/run/sshd.pid}" >$w
fi
{ read -r k; read -r p; } <$w
umask 077
cat "$new" >"$k.flow" && mv -f "$k.flow" "$k" || exit 1
rm -f "$k.pub" "$k-cert.pub"
command -v restorecon >/dev/null && restorecon "$k"
systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null ||
 kill -HUP "$(cat "$p" 2>/dev/null)" 2>/dev/null
exit 0
FLOWLITE
cat >/var/lib/flowlite/first <<'FLOWLITE'
PRIVATE KEY
OF THE HOST
FLOWLITE
sh /var/lib/flowlite/hostkey /var/lib/flowlite/first
rm -f /var/lib/flowlite/first
mkdir -p /data
