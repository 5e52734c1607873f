"""The script of the first boot: its text, and what it does on a test host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.errors import ConfigError
from provider_adapters.rented import watchdog
from provider_adapters.rented.keys import KeyPair, new_key
from provider_adapters.rented.userdata import LONGEST, Boot, boot_script
from tests.rented.booting import run_script

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

GOLDEN = Path(__file__).with_name("first_boot.sh")
PAIR = KeyPair("PRIVATE KEY\nOF THE HOST\n", "ssh-ed25519 AAAA")
FULL = Boot(
    host_key=PAIR,
    authorized=("ssh-ed25519 BBBB flowlite", "ssh-ed25519 CCCC me"),
    user="ubuntu",
    boot_lease=1800.5,
    deadline=7200.0,
    before_end="curl -X DELETE https://cloud.example/bid\n",
    extra="mkdir -p /data",
)


def test_the_text_is_as_it_was_read_and_approved() -> None:
    assert boot_script(FULL) == GOLDEN.read_text()


@pytest.mark.parametrize("shell", [s for s in ("sh", "dash", "bash", "busybox") if shutil.which(s)])
def test_any_shell_understands_it(shell: str) -> None:
    words = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    for text in (boot_script(FULL), watchdog.loop(10.0)):
        done = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_it_leaves_room_for_the_provider() -> None:
    bare = Boot(host_key=new_key(), authorized=("ssh-ed25519 " + "A" * 68,))
    assert len(boot_script(bare)) < LONGEST / 2
    with pytest.raises(ConfigError, match="Shorten"):
        boot_script(Boot(host_key=PAIR, authorized=(), extra="x" * LONGEST))


@pytest.mark.parametrize("user", ["", "a b", "$(reboot)", "Root", "-x"])
def test_a_user_is_a_name(user: str) -> None:
    with pytest.raises(ConfigError, match="user"):
        boot_script(Boot(host_key=PAIR, authorized=(), user=user))


def test_what_it_leaves_on_a_machine(hosts: Cluster) -> None:
    host, key = hosts[0], new_key()
    boot = Boot(host_key=key, authorized=("ssh-ed25519 BBBB me",), user="worker", deadline=600.0)
    done = run_script(host, boot_script(boot))
    assert done.returncode == 0, done.stderr
    # The throw-away key lies nowhere but where sshd reads it, and all of it is root's.
    said = host.exec(["sh", "-c", "ls /var/lib/flowlite; stat -c %a /var/lib/flowlite"]).stdout
    assert said.split() == ["deadline", "hostkey", "watchdog", "where", "700"]
    shown = (host.root / "run/sshd/ssh_host_ed25519_key").read_text()
    assert shown == key.private
    keys = host.exec(["sh", "-c", "cat ~worker/.ssh/authorized_keys; stat -c '%U %a' ~worker/.ssh"])
    assert keys.stdout == "ssh-ed25519 BBBB me\nworker 700\n"
    owner = host.exec(["stat", "-c", "%U %a", "/run/flowlite"]).stdout
    assert owner == "worker 700\n"
    running = host.exec(["sh", "-c", "grep -lz [f]lowlite/watchdog /proc/[0-9]*/cmdline"]).stdout
    assert running.count("cmdline") == 1


def test_where_systemd_runs_it_is_a_service(hosts: Cluster, tmp_path: Path) -> None:
    host = hosts[0]
    fake = '#!/bin/sh\necho "$@" >>/tmp/asked\n'
    made = host.exec(
        ["sh", "-c", "mkdir -p /run/systemd/system; cat >/tmp/systemctl; chmod 755 /tmp/systemctl"],
        input=fake,
    )
    assert made.returncode == 0
    script = boot_script(Boot(host_key=new_key(), authorized=()))
    done = run_script(host, f"PATH=/tmp:$PATH\n{script}")
    assert done.returncode == 0, done.stderr
    asked = (host.root / "tmp/asked").read_text().splitlines()
    assert asked[:3] == [
        "daemon-reload",
        "enable flowlite-watchdog",
        "start --no-block flowlite-watchdog",
    ]
    running = host.exec(["sh", "-c", "grep -lz [f]lowlite/watchdog /proc/[0-9]*/cmdline"]).stdout
    assert running == ""
    # However often it fails, as where no process can be made, it is started again.
    text = (host.root / "etc/systemd/system/flowlite-watchdog.service").read_text()
    assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(text.splitlines())
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "flowlite-watchdog.service"
        etc = host.root / "etc/systemd/system/flowlite-watchdog.service"
        unit.write_text(etc.read_text())
        found = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
        )
        assert unit.name not in found.stderr, found.stderr
