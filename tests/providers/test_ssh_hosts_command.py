"""`flow hosts`: adding, listing, checking, trusting."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.providers.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.testing.hosts import Cluster

PYTHON = f'python = "{sys.executable}"'


def problems(lab: Lab, *, code: int) -> list[dict[str, Any]]:
    [told] = lab.json("hosts", "check", code=code)
    return list(told["problems"])


def test_from_nothing_to_a_task(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, config="")
    assert "no hosts yet" in lab.flow("hosts").stdout
    refused = lab.flow("run", "--provider", "ssh", "--", "true", code=2)
    assert "flow hosts add NAME" in refused.stderr
    for host in hosts[:2]:
        lab.flow("hosts", "add", host.name, "--python", sys.executable)
    [first, second] = lab.json("hosts", "list")
    assert (first["name"], first["pool"], first["state"]) == ("node00", "default", "free")
    assert second["address"] == hosts[1].address
    assert first["python"] == ".".join(map(str, sys.version_info[:3]))
    done = lab.flow("run", "--provider", "ssh", "-N", "2", "--", "hostname")
    assert "node01" in done.stdout
    lab.flow("hosts", "remove", "node00")
    assert [row["name"] for row in lab.json("hosts", "list")] == ["node01"]


def test_adding_twice_or_nonsense_changes_nothing(lab: Lab) -> None:
    before = (lab.home / "config.toml").read_text()
    assert "already" in lab.flow("hosts", "add", "node00", code=2).stderr
    lab.flow("hosts", "add", "new", "--private-ip", "gpu1", code=2)
    lab.flow("hosts", "remove", "nodeO0", code=3)
    assert (lab.home / "config.toml").read_text() == before


def test_a_sound_pool_has_no_problems(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, settings=f'{PYTHON}\nshared_dir = "/mnt/shared"')
    assert problems(lab, code=0) == []
    assert "nothing is wrong" in lab.flow("hosts", "check").stdout
    assert list(hosts.shared.iterdir()) == []
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for host in hosts for pid in host.pids()]
    assert not any(b"\0serve\0" in words for words in left)


def test_what_is_wrong_is_told_with_its_fix(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, settings=f'{PYTHON}\nshared_dir = "/srv"')
    hosts[1].skew_clock(3600)
    hosts[2].kill()
    found = {(p["host"], p["serious"]): p for p in problems(lab, code=5)}
    assert re.search(r"36\d\d s ahead", found["node01", False]["problem"])
    assert "NTP" in found["node01", False]["fix"]
    assert "ssh node02 true" in found["node02", True]["fix"]
    assert "/srv is not the same place as on node00" in found["node01", True]["problem"]


def test_hosts_that_do_not_reach_each_other_are_named(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:3], PYTHON)
    hosts[0].partition(hosts[1])
    pairs = {(p["host"], p["problem"].split(" at ")[0]) for p in problems(lab, code=5)}
    assert pairs == {
        ("node00", "it does not reach node01"),
        ("node01", "it does not reach node00"),
    }


def test_a_server_that_passes_nothing_on_is_named(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:2], PYTHON)
    hosts[1].restart_sshd(AllowTcpForwarding="no")
    [problem] = problems(lab, code=5)
    assert problem["host"] == "node01"
    assert "AllowTcpForwarding" in problem["fix"]


def test_a_directory_in_which_no_program_runs_is_named(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:1], f'{PYTHON}\nnode_dir = "/opt/node"')
    hosts[0].exec(["mkdir", "/opt/node"])
    hosts[0].exec(["mount", "-t", "tmpfs", "-o", "noexec,mode=755", "none", "/opt/node"])
    [problem] = problems(lab, code=0)
    assert "no program can run where /opt/node is (mounted noexec)" in problem["problem"]
    assert "node_dir" in problem["fix"]


def test_a_host_that_kills_at_logout_is_named(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:1], f'{PYTHON}\nuser = "flow"')
    path = "/usr/local/bin/busctl"
    script = "#!/bin/sh\necho b true\n"
    hosts[0].exec(["sh", "-c", f"cat > {path} && chmod 755 {path}"], input=script)
    [problem] = problems(lab, code=5)
    assert "KillUserProcesses" in problem["problem"]
    assert "enable-linger flow" in problem["fix"]


def test_hosts_that_know_each_other_by_ipv6(
    fresh_hosts: Callable[..., Cluster], flow_home: Path
) -> None:
    hosts = fresh_hosts(2)
    listed = []
    for number, host in enumerate(hosts):
        address = f"fd5f::{number + 1}"
        added = host.exec(["ip", "addr", "add", f"{address}/64", "dev", "eth0", "nodad"])
        assert added.returncode == 0, added.stderr
        listed.append(f'{{host = "node0{number}", private_ip = "{address}"}}')
    lab = Lab(
        hosts,
        flow_home,
        config=f'provider = "ssh"\n[ssh.pools.lab]\nhosts = [{", ".join(listed)}]\n{PYTHON}\n',
    )
    assert problems(lab, code=0) == []
    # As it is with tasks: they run there.
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $MASTER_ADDR")
    assert "fd5f::1" in done.stdout


def test_a_wrong_private_address_is_found(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(
        hosts,
        flow_home,
        config=(
            'provider = "ssh"\n[ssh.pools.lab]\n'
            f'hosts = ["node00", {{host = "node01", private_ip = "{hosts[2].address}"}}]\n{PYTHON}\n'
        ),
    )
    [problem] = problems(lab, code=5)
    assert problem["host"] == "node00"
    assert "private_ip" in problem["fix"]


class TestTrust:
    def test_an_unknown_key_is_refused_until_it_is_accepted(
        self, fresh_hosts: Callable[..., Cluster], flow_home: Path
    ) -> None:
        hosts = fresh_hosts(1)
        lab = Lab(hosts, flow_home, settings=PYTHON)
        hosts.known_hosts.write_text("")
        refused = lab.flow("run", "--", "true", code=5)
        assert "flow hosts trust node00" in refused.stderr
        [row] = lab.json("hosts", "list")
        assert row["state"] == "unreachable"
        asked = lab.flow("hosts", "trust", "node00", code=2)
        assert "SHA256:" in asked.stderr
        assert "--yes" in asked.stderr
        lab.flow("hosts", "trust", "node00", "--yes")
        [known] = lab.json("hosts")
        assert (known["state"], known.keys()) == ("free", row.keys())
        assert "known already" in lab.flow("hosts", "trust", "node00").stdout
        lab.flow("run", "--", "true")

    def test_the_key_of_a_jump_host_is_named_as_its_own(
        self, fresh_hosts: Callable[..., Cluster], flow_home: Path, tmp_path: Path
    ) -> None:
        hosts = fresh_hosts(2)
        config = tmp_path / "ssh_config"
        config.write_text(f"Host node01 inner\n  ProxyJump node00\n{hosts.ssh_config.read_text()}")
        lab = Lab(
            hosts,
            flow_home,
            config=(
                f'provider = "ssh"\n[ssh]\nconfig_file = "{config}"\n{PYTHON}\n'
                '[ssh.pools.lab]\nhosts = ["node01"]\n'
            ),
        )
        # A host on the way is looked up where those of the pools are.
        del lab.environment["FLOW_SSH_CONFIG"]
        lab.flow("run", "--", "true")
        hosts[0].change_host_key()
        [problem] = problems(lab, code=5)
        assert problem["host"] == "node01"
        assert problem["fix"] == "flow hosts trust node00"
        assert "on the way to node01, jump host node00" in problem["problem"]
        task = lab.submit("--", "true")
        reason = str(lab.wait(task, "failed")["reason"])
        assert "`flow hosts trust node00`" in reason
        lab.flow("hosts", "trust", "node00", "--yes")
        lab.flow("run", "--", "true")

    def test_a_revoked_key_is_never_offered_for_trust(
        self, fresh_hosts: Callable[..., Cluster], flow_home: Path
    ) -> None:
        hosts = fresh_hosts(1)
        lab = Lab(hosts, flow_home, settings=PYTHON)
        kinds = [line.split(maxsplit=1)[1] for line in hosts.known_hosts.read_text().splitlines()]
        hosts.known_hosts.write_text("".join(f"@revoked * {each}\n" for each in kinds))
        [problem] = problems(lab, code=5)
        assert "revoked" in problem["problem"]
        refused = lab.flow("hosts", "trust", "node00", "--yes", code=5)
        assert "revoked" in refused.stderr
        for said in (problem["fix"], problem["problem"], refused.stdout + refused.stderr):
            assert "flow hosts trust" not in said
        assert not (flow_home / "known_hosts").exists()

    def test_a_changed_key_is_shown_as_such(
        self, fresh_hosts: Callable[..., Cluster], flow_home: Path
    ) -> None:
        hosts = fresh_hosts(1)
        lab = Lab(hosts, flow_home, settings=PYTHON)
        hosts[0].change_host_key()
        assert problems(lab, code=5)[0]["fix"] == "flow hosts trust node00"
        asked = lab.flow("hosts", "trust", "node00", code=2)
        assert "before, it was SHA256:" in asked.stderr
        lab.flow("hosts", "trust", "node00", "--yes")
        lab.flow("run", "--", "true")
