"""A slot: a host that is rented out, each time as a new machine, instead of started with its cluster.

It boots like a cloud's image: sshd starts at its usual paths with new host keys, then the machine's script runs once as
root, with its output on the console.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from flowlite.testing.hosts import cards, disks, file_server, keys, root
from flowlite.testing.hosts.machine import Machine
from flowlite.testing.hosts.network import Switch

USER_ID = 1000
PID_FILE = "/run/sshd.pid"
SCRIPT = "/var/lib/cloud/user-data"
OUTPUT = "/var/log/cloud-init-output.log"
# Two kinds of host keys, as images have. A client that pinned one must ask for that kind.
_INIT = f"""
for kind in ed25519 ecdsa; do
    file=/etc/ssh/ssh_host_${{kind}}_key
    [ -e $file ] || ssh-keygen -q -t $kind -N "" -C "" -f $file
done
/usr/sbin/sshd -E /var/log/sshd.log || exit 1
if [ -e {SCRIPT} ] && [ ! -e {SCRIPT}.done ]; then
    touch {SCRIPT}.done
    ln -sf /proc/1/fd/1 {OUTPUT}
    if [ "$(head -c 2 {SCRIPT})" = "#!" ]; then
        ({{ {SCRIPT} || echo "user data ended with status $?"; }} 2>&1 </dev/null &)
    fi
fi
exec sleep infinity
"""


class Slot(Machine):
    """A host that is claimed, booted and released.

    Attributes:
        disks: The attached disks by name: device number, size in bytes, and appearance.
    """

    _init = _INIT

    def __init__(self, *, public_address: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.public_address = public_address
        self.taker: str | None = None
        self.running = False
        self.disks: dict[str, tuple[int, int, disks.Appearance]] = {}
        self._boot: dict[str, Any] = {}

    def prepare_boot(self, **boot: Any) -> None:
        """Sets what the next fresh start uses: script, authorized_keys, user, hostname, files, gpus."""
        self._boot = boot
        (self.identity.directory / "console.log").unlink(missing_ok=True)

    def start(self, network: int, fresh: bool) -> None:
        """Starts process 1. If it ends by itself, the room's listeners are notified."""
        super().start(network, fresh)
        self.running = True
        self._wait_until_apart()

    def _wait_until_apart(self, timeout: float = 90) -> None:
        """Waits until process 1 has its own root. Before that, entering it would lead to the real machine."""
        deadline = time.monotonic() + timeout
        while not self.ended() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{self.pid}/exe")).name.startswith("tini"):
                    return
            time.sleep(0.001)

    def kill(self) -> None:
        """Ends it without notifying the listeners."""
        self.running = False
        super().kill()

    def release(self) -> None:
        """Frees the disk and its contents."""
        self.kill()
        self.unmount()
        self.disks.clear()
        self.taker = None
        self._boot = {}

    def show_disk(self, disk: str) -> None:
        """Makes an attached disk appear. On a machine that is not running, it appears at the next start."""
        if not self.ended():
            disks.show(self._root, *self.disks[disk])

    def hide_disk(self, disk: str) -> None:
        """Removes a disk, if it is attached."""
        number, _, look = self.disks.pop(disk, (0, 0, None))
        if look is not None and not self.ended():
            disks.hide(self._root, number, look)

    def _add_devices(self) -> None:
        disks.prepare(Path("/"))
        for number, size, look in self.disks.values():
            disks.show(Path("/"), number, size, look)

    def do_write(self, path: str, text: str | None) -> None:
        """Writes a file atomically. None deletes it."""
        self._wait_for_root()
        file = self._root / path.lstrip("/")
        if text is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(text)
        part.replace(file)

    def _wait_for_root(self) -> None:
        # A process that was just forked still has the real machine's root, which must not be written to.
        deadline = time.monotonic() + 5
        while not self.ended() and time.monotonic() < deadline:
            if not os.path.samestat(os.stat(self._root), os.stat("/")):
                return
            time.sleep(0.002)
        raise RuntimeError(f"{self.name} does not run")

    @property
    def _hostname(self) -> str:
        return str(self._boot.get("hostname") or self.name)

    def _prepare(self) -> None:
        """Writes sshd's configuration to the disk."""

    def _make_disk(self) -> None:
        super()._make_disk()
        etc = self.identity.disk / "upper" / "etc"
        (etc / "hostname").write_text(f"{self._hostname}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self._hostname}\n")
        self._write_ssh(etc / "ssh")
        self._write_user(etc)
        self._write_files()

    def _write_ssh(self, directory: Path) -> None:
        directory.mkdir()
        # Hides the real machine's host keys, which would show through the overlay.
        for file in Path("/etc/ssh").glob("ssh_host_*"):
            os.mknod(directory / file.name, 0o020000, os.makedev(0, 0))
        config = keys.sshd_config(
            self.identity.search_path, {"PidFile": PID_FILE, **self.identity.sshd}, host_key=False
        )
        (directory / "sshd_config").write_text(config)

    def _write_user(self, etc: Path) -> None:
        user, keys_of_user = self._boot["user"], self._boot["authorized_keys"]
        home = self.identity.disk / "home" / user
        root.add_account(etc, user, USER_ID)
        (etc / "sudoers.d").mkdir()
        (etc / "sudoers.d" / "90-cloud-init-users").write_text(f"{user} ALL=(ALL) NOPASSWD:ALL\n")
        lines = "".join(f"{key.strip()}\n" for key in keys_of_user)
        root.authorize(home, lines, USER_ID)
        closed = f"command=\"echo 'Please login as the user {user} rather than root.';exit 142\" "
        told = "".join(f"{closed}{line}\n" for line in lines.splitlines())
        root.authorize(self.identity.disk / "root", told, 0)

    def _write_files(self) -> None:
        script = bytes.fromhex(self._boot["script"])
        if script:
            file = self.identity.disk / "upper" / SCRIPT.lstrip("/")
            file.parent.mkdir(parents=True)
            file.write_bytes(script)
            file.chmod(0o700)
        file_server.write_client(self.identity.disk / "upper" / "usr" / "sbin")
        if self._boot["gpus"]:
            cards.install(self.identity.disk, self._boot["gpus"])
        for path, text in self._boot["files"].items():
            file = self.identity.disk / "upper" / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


class Slots:
    """The room's operations on its slots. Their cables stay in the switch, and are cut while a slot is off."""

    def __init__(self, slots: list[Slot], switch: Switch) -> None:
        self._slots = slots
        self._switch = switch

    def plug(self, tag: str) -> None:
        """Connects the slots to the switch."""
        if not self._slots:
            return
        more = {slot.name: slot.public_address for slot in self._slots}
        self._switch.plug([slot.cable for slot in self._slots], tag, more)
        for slot in self._slots:
            self._switch.partition(slot.name, cut=True)

    def do_claim(self, taker: str) -> dict[str, str] | None:
        """Claims the slot that has been free for the longest time. Returns None if none is free."""
        for slot in self._slots:
            if slot.taker is None:
                slot.taker = taker
                # Moved to the end, so that its address is reused as late as possible.
                self._slots.remove(slot)
                self._slots.append(slot)
                return {
                    "slot": slot.name,
                    "address": slot.cable[2],
                    "public_address": slot.public_address,
                }
        return None

    def do_boot(self, name: str, taker: str, **boot: Any) -> None:
        """Starts a slot on an empty disk, if `taker` still has it, without waiting for sshd."""
        slot = self.find(name)
        if slot.taker != taker:
            return
        slot.prepare_boot(**boot)
        self._switch.partition(name, cut=False)
        slot.start(self._switch.ports[name].network, fresh=True)

    def do_boot_again(self, name: str, taker: str) -> None:
        """Restarts an ended slot on its old disk."""
        slot = self.find(name)
        if slot.taker != taker:
            return
        self._switch.partition(name, cut=False)
        slot.start(self._switch.ports[name].network, fresh=False)

    def do_free(self) -> int:
        """The number of free slots."""
        return sum(slot.taker is None for slot in self._slots)

    def do_halt(self, name: str, taker: str) -> None:
        """Ends a slot without releasing it or notifying the listeners."""
        if self.find(name).taker == taker:
            self.find(name).kill()
            self._switch.partition(name, cut=True)

    def do_guard(self, name: str, taker: str, admitted: list[str] | None) -> None:
        """Filters the incoming packets of a slot until it is released."""
        if self.find(name).taker == taker:
            self._switch.guard(name, admitted)

    def do_release(self, name: str, taker: str, cut: bool) -> None:
        """Ends a slot and frees it. With `cut`, its connections are not closed."""
        slot = self.find(name)
        if slot.taker == taker:
            self._release(slot, cut)

    def _release(self, slot: Slot, cut: bool) -> None:
        name = slot.name
        if cut:
            self._switch.partition(name, cut=True)
        slot.kill()
        self._restore(slot)
        slot.release()

    def release_all(self) -> None:
        """Restores the state after `plug`."""
        for slot in self._slots:
            self._release(slot, cut=False)

    def ended(self) -> list[str]:
        """The slots that ended by themselves since the last call, now cut off. Rebooted slots are up again."""
        gone = [slot for slot in self._slots if slot.running and slot.ended()]
        for slot in [each for each in gone if each.rebooted]:
            gone.remove(slot)
            slot.start(self._switch.ports[slot.name].network, fresh=False)
        for slot in gone:
            slot.running = False
            self._switch.partition(slot.name, cut=True)
        return [slot.name for slot in gone]

    def _restore(self, slot: Slot) -> None:
        port = self._switch.ports[slot.name]
        if port.relay is not None:
            self._switch.delay(slot.name, 0, 0)
        if port.blocked:
            self._switch.block(slot.name, [])
        if port.guarded:
            self._switch.guard(slot.name, None)
        self._switch.partition(slot.name, cut=True)

    def find(self, name: str) -> Slot:
        """Returns the slot with that name."""
        return next(slot for slot in self._slots if slot.name == name)
