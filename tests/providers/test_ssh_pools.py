"""Pools in the configuration: read into values, every mistake named with its file and key."""

from __future__ import annotations

import dataclasses
import errno
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.cli import main
from flowlite.errors import CapacityUnavailable, ConfigError, ProviderError
from flowlite.provider import Plan, provider_names
from flowlite.settings.settings import load_settings
from flowlite.spec import TaskConfig
from flowlite.spec.gpu import kind_named
from provider_adapters.ssh import editing
from provider_adapters.ssh.host_requirements import choose_python, misfit, python_problem
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.pools import Host, Pool, choose_pool, read_pools
from provider_adapters.ssh.volume_hosts import Places


def pools(home: Path, text: str) -> dict[str, Pool]:
    (home / "config.toml").write_text(text)
    return read_pools(settings_here("ssh"))


class TestReading:
    def test_the_nearest_setting_counts(self, flow_home: Path) -> None:
        lab = pools(
            flow_home,
            """
            [ssh]
            user = "all"
            node_dir = "/scratch/flowlite"
            [ssh.pools.lab]
            hosts = ["a", "ben@b:2222", {host = "c", user = "carl", private_ip = "10.0.0.3"}]
            port = 22
            python = "/opt/py/bin/python3"
            gpus = "h100:8"
            shared_dir = "/nfs/flow/"
            """,
        )["lab"]
        a, b, c = lab.hosts
        assert lab.shared_dir == "/nfs/flow"
        assert (a.name, a.target) == ("a", {"host": "a", "user": "all", "port": 22})
        assert (b.name, b.target) == ("b", {"host": "b", "user": "ben", "port": 2222})
        assert (c.target["user"], c.private_ip) == ("carl", "10.0.0.3")
        assert {h.python for h in lab.hosts} == {"/opt/py/bin/python3"}
        assert {h.node_dir for h in lab.hosts} == {"/scratch/flowlite"}
        assert [h.index for h in lab.hosts] == [0, 1, 2]

    def test_addresses_of_both_kinds(self, flow_home: Path) -> None:
        text = "[ssh.pools.lab]\nhosts = ['10.0.0.3:22', '[fd00::1]:2200', 'fd00::2']\n"
        hosts = pools(flow_home, text)["lab"].hosts
        found = [(h.name, h.target.get("port")) for h in hosts]
        assert found == [("10.0.0.3", 22), ("fd00::1", 2200), ("fd00::2", None)]

    def test_the_name_of_a_user_may_have_a_domain(self, flow_home: Path) -> None:
        text = (
            "[ssh.pools.lab]\nhosts = ['ada@corp.example@a:2222', 'ada@corp.example@[fd00::1]']\n"
        )
        hosts = pools(flow_home, text)["lab"].hosts
        assert [h.name for h in hosts] == ["a", "fd00::1"]
        assert {h.target["user"] for h in hosts} == {"ada@corp.example"}
        assert hosts[0].target["port"] == 2222

    def test_both_ways_to_write_it(self, flow_home: Path) -> None:
        text = "[providers.ssh.pools.lab]\nhosts = ['a']\n"
        assert pools(flow_home, text)["lab"].hosts[0].name == "a"

    def test_a_project_adds_to_the_users_pools(
        self, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "flow.toml").write_text("[ssh.pools.here]\nhosts = ['h']\n")
        found = pools(flow_home, "[ssh.pools.lab]\nhosts = ['a']\n")
        assert {name: pool.origin for name, pool in found.items()} == {
            "lab": str(flow_home / "config.toml"),
            "here": str(tmp_path / "flow.toml"),
        }

    def test_the_ssh_configuration_is_written_down_with_the_task(
        self, flow_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLOW_SSH_CONFIG", "/etc/ssh/other")
        [host] = pools(flow_home, "[ssh.pools.lab]\nhosts = ['a']\n")["lab"].hosts
        assert host.target["config_file"] == "/etc/ssh/other"

    def test_a_host_survives_json(self) -> None:
        host = Host("a", 3, "lab", {"host": "a"}, private_ip="10.0.0.1")
        assert Host.from_json(host.to_json()) == host

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("[ssh]\npols = {}\n", "[ssh] has no setting 'pols'; did you mean 'pools'?"),
            ("[ssh]\npools = 3\n", "write the hosts of a pool under [ssh.pools.NAME]"),
            ("[ssh.pools.lab]\nhost = ['a']\n", "[ssh.pools.lab] has no setting 'host'"),
            ("[ssh.pools.lab]\nhosts = 'a'\n", "hosts is 'a'; give a list"),
            ("[ssh.pools.lab]\nhosts = [3]\n", "hosts[0] is 3; give a name, or a table"),
            ("[ssh.pools.lab]\nhosts = ['a', 'a']\n", "'a' stands there twice"),
            (
                "[ssh.pools.lab]\nhosts = ['a:7', 'a:8']\n",
                "'a' stands there twice; if these are two machines, name one: {host = 'a:8', name = ",
            ),
            ("[ssh.pools.lab]\nhosts = ['-oProxyCommand=x']\n", "is not a host"),
            ("[ssh.pools.lab]\nhosts = ['a b']\n", "is not a host"),
            ("[ssh.pools.lab]\nhosts = [{name = 'x'}]\n", "hosts[0] has no host"),
            ("[ssh.pools.lab]\nhosts = [{host = 'a', port = 0}]\n", "port is 0; give a port"),
            (
                "[ssh.pools.lab]\nhosts = [{host = 'a', private_ip = 'gpu1'}]\n",
                "private_ip is 'gpu1'; give an IP address; names are not looked up",
            ),
            ("[ssh.pools.lab]\nhosts = ['a']\ngpus = 'h10'\n", "gpus is 'h10'; give a GPU string"),
            ("[ssh.pools.lab]\nhosts = ['a']\npython = 'py'\n", "python is 'py'; give an absolute"),
            ("[ssh.pools.lab]\nhosts = ['a']\nshared_dir = '~/x'\n", "the same on every host"),
            ("[ssh.pools.'a b']\nhosts = ['a']\n", "'a b' cannot name a pool"),
        ],
    )
    def test_mistakes_are_named_with_file_and_key(
        self, flow_home: Path, text: str, what: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            pools(flow_home, text)
        assert str(caught.value).startswith(f"{flow_home / 'config.toml'}: ")
        assert what in str(caught.value)

    def test_a_table_of_nobody_is_refused(self, flow_home: Path) -> None:
        (flow_home / "config.toml").write_text("[shh]\npool = 'x'\n")
        with pytest.raises(ConfigError, match=r"\[shh\] is neither .* did you mean 'ssh'"):
            load_settings()

    def test_every_adapter_has_its_table(self, flow_home: Path) -> None:
        for name in provider_names():
            (flow_home / "config.toml").write_text(f"[{name}]\nx = 1\n")
            assert load_settings().provider_options(name) == {"x": 1}


class TestChoosing:
    TWO = "[ssh.pools.a]\nhosts = ['x']\n[ssh.pools.b]\nhosts = ['y']\n"

    def test_the_only_one_needs_no_name(self, flow_home: Path) -> None:
        pools(flow_home, "[ssh.pools.lab]\nhosts = ['a']\n")
        assert choose_pool(settings_here("ssh")).name == "lab"

    def test_a_pool_without_hosts_is_no_choice(self, flow_home: Path) -> None:
        """`flow hosts remove` leaves it, with its settings."""
        pools(flow_home, "[ssh.pools.a]\nhosts = []\n[ssh.pools.b]\nhosts = ['y']\n")
        assert choose_pool(settings_here("ssh")).name == "b"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["add", "z"], "there are 2 pools: a, b. Say which with --pool, or set `pool`"),
            (["list", "--pool", "c"], "--pool: there is no pool 'c'; known: a, b"),
        ],
    )
    def test_flow_hosts_names_its_own_option(
        self, flow_home: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (flow_home / "config.toml").write_text(self.TWO)
        assert main(["hosts", *words]) == 2
        assert said in capsys.readouterr().err

    def test_region_wins_over_the_setting(self, flow_home: Path) -> None:
        pools(flow_home, f"[ssh]\npool = 'a'\n{self.TWO}")
        assert choose_pool(settings_here("ssh")).name == "a"
        assert choose_pool(settings_here("ssh"), "b").name == "b"

    @pytest.mark.parametrize(
        ("text", "region", "what"),
        [
            ("", None, "the ssh provider has no hosts yet: `flow hosts add NAME`"),
            (TWO, None, "there are 2 pools: a, b. Say which with region="),
            (TWO, "c", "region: there is no pool 'c'; known: a, b"),
            (f"[ssh]\npool = 'aa'\n{TWO}", None, "[ssh] pool: there is no pool 'aa'"),
            ("[ssh.pools.a]\nhosts = []\n", None, "the pool 'a' has no hosts"),
        ],
    )
    def test_what_cannot_be_chosen(
        self, flow_home: Path, text: str, region: str | None, what: str
    ) -> None:
        pools(flow_home, text)
        with pytest.raises(ConfigError) as caught:
            choose_pool(settings_here("ssh"), region)
        assert what in str(caught.value)


class TestEditing:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "provider = 'ssh'\n",
            "provider = 'ssh'  # mine\n\n[ssh]\nuser = 'me'\n",
            "[ssh.pools.lab]\nhosts = ['a', 'b']  # two\npython = '/x'\n\n[local]\n",
            "[ssh.pools.lab]\nhosts = [\n  'a', # [not the end]\n  {host = 'b]'},\n]\n",
            "[ssh.pools.lab]\npython = '/x'\n",
            "[ssh.pools.other]\nhosts = ['z']\n",
            '[ ssh . pools . "lab" ]\nhosts=["a"]\n',
        ],
    )
    def test_only_the_hosts_change(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "config.toml"
        path.write_text(text)
        before = tomllib.loads(text)
        entry = {"host": "new", "private_ip": "10.0.0.9"}
        editing.change_hosts(path, "lab", lambda hosts: [*hosts, "n", entry])
        after = tomllib.loads(path.read_text())
        hosts = after["ssh"]["pools"]["lab"].pop("hosts")
        old = before.get("ssh", {}).get("pools", {}).get("lab", {})
        assert hosts == [*old.pop("hosts", []), "n", entry]
        before.setdefault("ssh", {}).setdefault("pools", {}).setdefault("lab", {})
        assert after == before
        for comment in ("# mine", "# two"):
            assert (comment in text) == (comment in path.read_text())

    @pytest.mark.parametrize(
        "text", ["ssh.pools.lab.hosts = ['a']\n", "[ssh.pools]\nlab = {hosts = ['a']}\n"]
    )
    def test_what_cannot_be_changed_is_left_alone(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "config.toml"
        path.write_text(text)
        with pytest.raises(ConfigError, match="edit it by hand"):
            editing.change_hosts(path, "lab", lambda hosts: [*hosts, "n"])
        assert path.read_text() == text

    def test_a_link_into_a_repository_of_settings_is_kept(self, tmp_path: Path) -> None:
        there, path = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
        there.write_text("max_cost = 3\n")
        path.symlink_to(there)
        editing.change_hosts(path, "lab", lambda hosts: [*hosts, "n"])
        assert path.is_symlink()
        assert tomllib.loads(there.read_text())["ssh"]["pools"]["lab"]["hosts"] == ["n"]


def facts(**changes: object) -> Facts:
    usual = {"cores": 8, "memory_gb": 64.0, "home": "/home/me", "pythons": [["/py", "3.11.7"]]}
    return Facts.from_json({**usual, **changes})


H100 = {"index": 0, "uuid": "x", "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.6}


class TestFitting:
    host = Host("gpu1", 0, "lab", {"host": "gpu1"})

    @pytest.mark.parametrize(
        ("wanted", "what"),
        [
            ({"gpu": "h100"}, ""),
            ({"gpu": "h100-80gb"}, ""),
            ({"gpu": "h100:2"}, "gpu1 has 1 × NVIDIA H100 80GB HBM3"),
            ({"gpu": "a100"}, "gpu1 has 1 × NVIDIA H100 80GB HBM3"),
            ({"cpu": 9.0}, "gpu1 has 8 cores"),
            ({"memory": 65.0}, "gpu1 has 64 GB of memory"),
        ],
    )
    def test_what_is_asked_for(self, wanted: dict[str, object], what: str) -> None:
        assert misfit(self.host, facts(gpus=[H100]), wanted) == what

    def test_nothing_is_known_of_a_silent_host(self) -> None:
        assert misfit(self.host, None, {"gpu": "h100"}) == ""

    def test_what_is_declared_counts(self) -> None:
        host = Host("gpu1", 0, "lab", {}, gpus="h100:8")
        assert misfit(host, None, {"gpu": "h100:8"}) == ""
        assert misfit(host, facts(), {"gpu": "h100:8"}) == ""
        assert misfit(host, None, {"gpu": "a100"}) == "gpu1 has 8 × h100"

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA L40S", "l40s"),
            ("Tesla T4", "t4"),
            ("NVIDIA RTX PRO 6000 Blackwell", "rtxpro6000"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("GRID V100", "v100"),
            ("Something Else", ""),
        ],
    )
    def test_names_of_the_driver(self, name: str, kind: str) -> None:
        assert kind_named(name) == kind


class TestPython:
    host = Host("gpu1", 0, "lab", {})
    some = facts(pythons=[["/a", "3.12.1"], ["/b", "3.11.7"], ["/c", "3.9.2"]])

    def test_the_clients_own_version_is_preferred(self) -> None:
        assert choose_python(self.host, self.some, "3.11") == ("/b", "3.11.7")

    def test_any_that_is_new_enough_will_do(self) -> None:
        assert choose_python(self.host, self.some, "3.13") == ("/a", "3.12.1")
        assert choose_python(self.host, self.some, None) == ("/a", "3.12.1")

    def test_a_declared_one_is_taken(self) -> None:
        host = Host("gpu1", 0, "lab", {}, python="/b")
        assert choose_python(host, self.some, "3.12") == ("/b", "3.11.7")

    def test_below_the_home_directory(self) -> None:
        host = Host("gpu1", 0, "lab", {}, python="~/v/bin/python")
        there = facts(pythons=[["/home/me/v/bin/python", "3.11.7"]])
        assert choose_python(host, there, None) == ("/home/me/v/bin/python", "3.11.7")

    @pytest.mark.parametrize(
        ("python", "pythons", "what"),
        [
            ("", [["/c", "3.9.2"]], "has no Python 3.11 or newer (found: 3.9.2 (/c))"),
            ("", [], "(found: none)"),
            ("/c", [["/c", "3.9.2"]], "has Python 3.9.2 at /c; it needs 3.11"),
            ("/d", [["/a", "3.12.1"]], "has no Python at /d, or one that prints something"),
        ],
    )
    def test_why_there_is_none(self, python: str, pythons: list[list[str]], what: str) -> None:
        host = Host("gpu1", 0, "lab", {}, python=python)
        assert what in python_problem(host, facts(pythons=pythons))


class TestPlan:
    """With hosts that have said what they are; nothing is connected to."""

    TEXT = "provider = 'ssh'\n[ssh.pools.lab]\nhosts = ['a', 'b']\n"

    def plan(self, home: Path, text: str = TEXT, said: Facts | None = None, **asked: Any) -> Plan:
        (home / "config.toml").write_text(text)
        provider = adapter("ssh")
        for host in read_pools(settings_here("ssh"))["lab"].hosts:
            known = dataclasses.replace(said or facts(), seen_at=time.time())
            Memory(home / "ssh" / "hosts").keep(host, known)
        return provider.plan(TaskConfig(command=["true"], **asked))

    def test_it_says_what_will_be_launched(self, flow_home: Path) -> None:
        plan = self.plan(flow_home, num_instances=2, processes_per_node=4)
        assert (plan.region, plan.num_instances, plan.processes_per_node) == ("lab", 2, 4)
        assert plan.price_per_hour == 0
        assert [host["name"] for host in plan.options["hosts"]] == ["a", "b"]

    @pytest.mark.parametrize("cap", ["max_price_per_hour", "max_cost"])
    def test_it_says_that_caps_on_money_have_no_effect(self, flow_home: Path, cap: str) -> None:
        assert any("caps have no effect" in note for note in self.plan(flow_home, **{cap: 5}).notes)
        assert not any("caps" in note for note in self.plan(flow_home).notes)

    def test_a_volume_needs_a_way_to_be_shared(self, flow_home: Path) -> None:
        asked = {"num_instances": 2, "volumes": {"/data": "data"}}
        with pytest.raises(ConfigError) as caught:
            self.plan(flow_home, **asked)
        assert "a has no sshfs" in str(caught.value)
        assert "set shared_dir under [ssh.pools.lab]" in str(caught.value)
        [served] = self.plan(flow_home, said=facts(tools=["sshfs"]), **asked).options["volumes"]
        assert served["share"] == "sshfs"
        text = f"{self.TEXT}shared_dir = '/nfs'\n"
        [shared] = self.plan(flow_home, text, **asked).options["volumes"]
        assert "share" not in shared

    def test_a_block_volume_is_refused(self, flow_home: Path) -> None:
        volume = {"name": "data", "interface": "block"}
        with pytest.raises(ConfigError, match="have no block volumes"):
            self.plan(flow_home, volumes={"/data": volume})

    def test_an_image_needs_an_engine(self, flow_home: Path) -> None:
        with pytest.raises(ConfigError, match="a has neither docker nor podman"):
            self.plan(flow_home, image="pytorch/pytorch")
        assert self.plan(flow_home, said=facts(tools=["podman"]), image="x").options["container"]

    def test_a_lease_outlasts_the_pause_between_two_attempts(self, flow_home: Path) -> None:
        short = self.plan(flow_home).options["ttl"]
        retries = {"max_retries": 2, "delay": 10, "max_delay": 600}
        assert self.plan(flow_home, retries=retries).options["ttl"] == short + 600

    def test_where_volumes_lie(self, flow_home: Path) -> None:
        places = Places(flow_home / "ssh")
        assert places.host_for("lab", ["x"]) is None
        places.settle("lab", ["x"], {"host": "a", "key": "ka", "root": "/r"})
        places.settle("lab", ["x"], {"host": "a", "key": "ka", "root": "/r"})
        assert places.host_for("lab", ["x", "new"]) == "a"
        with pytest.raises(CapacityUnavailable, match="x lies on a now"):
            places.settle("lab", ["x"], {"host": "b", "key": "kb", "root": "/r"})
        places.settle("lab", ["y"], {"host": "b", "key": "kb", "root": "/r"})
        with pytest.raises(ProviderError, match="x on a, y on b"):
            places.host_for("lab", ["x", "y"])
        places.forget("lab", "y")
        assert places.host_for("lab", ["x", "y"]) == "a"

    def test_a_full_disk_is_named(self, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(path: Path, content: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("provider_adapters.locked_record.write_atomically", full)
        with pytest.raises(
            ProviderError, match=r"volumes\.json cannot be written: .*No space left"
        ):
            Places(flow_home / "ssh").settle("lab", ["x"], {"host": "a", "key": "ka", "root": "/r"})
