"""Settings of the directory that a task was submitted in hold for the whole life of the task, wherever that is led."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.errors import PermissionRefused
from flowlite.provider import (
    Plan,
    get_provider,
    provider_of_task,
    settings_of_task,
)
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.process import launch
from provider_adapters.aws import settings as aws
from provider_adapters.local import planning as local
from provider_adapters.mithril import settings as mithril
from provider_adapters.slurm import settings as slurm
from provider_adapters.ssh import pools as ssh
from provider_adapters.ssh.pools import read_pools
from tests.providers.in_force import in_supervisors, settings_in_force

HOST = "[ssh.pools.lab]\nhosts = ['a']\n"

# For each setting of each adapter, a flow.toml in which it has another value than its default.
CASES: dict[str, dict[str, str]] = {
    "aws": {
        "region": "[aws]\nregion = 'eu-west-1'\n",
        "zones": "[aws]\nzones = ['us-east-1b']\n",
        "profile": "[aws]\nprofile = 'research'\n",
        "ami": "[aws]\nami = 'ami-0123456789abcdef0'\n",
        "ami_parameter": "[aws]\nami_parameter = '/my/image'\n",
        "subnet": "[aws]\nsubnet = 'subnet-0123abcd'\n",
        "security_group": "[aws]\nsecurity_group = 'sg-0123abcd'\n",
        "root_gb": "[aws]\nroot_gb = 321\n",
        "instance_profile": "[aws]\ninstance_profile = 'trainer'\n",
        "placement_group": "[aws]\nplacement_group = 'mine'\n",
        "capacity_reservation": "[aws]\ncapacity_reservation = 'cr-0a'\n",
        "capacity_block": "[aws]\ncapacity_block = 'cr-0b'\n",
        "public_ip": "[aws]\npublic_ip = false\n",
        "user": "[aws]\nuser = 'ubuntu'\n",
        "lease": "[aws]\nlease = '11m'\n",
        "boot_timeout": "[aws]\nboot_timeout = '3m'\n",
        "endpoint_url": "[aws]\nendpoint_url = 'http://127.0.0.1:5000'\n",
        "jump": "[aws]\njump = 'ubuntu@bastion'\n",
        "ssh_from": "[aws]\nssh_from = '203.0.113.7/32'\n",
        "cny_per_usd": "[aws]\ncny_per_usd = 7.1\n",
        "prices": "[aws.prices]\n'p5.48xlarge' = 44.0\n",
        "listing_lag": "[aws]\nlisting_lag = 60\n",
        "shared_config_file": "[aws]\nshared_config_file = 'aws/config'\n",
        "shared_credentials_file": "[aws]\nshared_credentials_file = 'aws/credentials'\n",
        "ssh_config": "[aws]\nssh_config = 'ssh_config'\n",
    },
    "mithril": {
        "project": "[mithril]\nproject = 'team'\n",
        "region": "[mithril]\nregion = 'us-west1-b'\n",
        "api_url": "[mithril]\napi_url = 'https://api.example'\n",
        "api_key_file": "[mithril]\napi_key_file = 'keys/mithril'\n",
        "node_key": "[mithril]\nnode_key = false\n",
        "user": "[mithril]\nuser = 'ubuntu'\n",
        "lease": "[mithril]\nlease = '2m'\n",
        "boot_timeout": "[mithril]\nboot_timeout = '3m'\n",
        "jump": "[mithril]\njump = 'bastion'\n",
        "listing_lag": "[mithril]\nlisting_lag = 61\n",
        "ssh_config": "[mithril]\nssh_config = 'ssh_config'\n",
    },
    "slurm": {
        "login": "[slurm]\nlogin = 'me@cluster'\n",
        "cluster": "[slurm]\ncluster = 'beta'\n",
        "shared_dir": "[slurm]\nshared_dir = '/shared'\n",
        "node_dir": "[slurm]\nnode_dir = '/scratch'\n",
        "python": "[slurm]\npython = '/opt/python3'\n",
        "lease": "[slurm]\nlease = '9m'\n",
        "signal_seconds": "[slurm]\nsignal_seconds = 240\n",
        "ssh_config": "[slurm]\nssh_config = 'ssh_config'\n",
    },
    "ssh": {
        **{
            f"{where}{key}": f"{before}{key} = {value}{after}"
            for key, value in {
                "python": "'/opt/python3'",
                "gpus": "'h100:4'",
                "user": "'me'",
                "port": "2222",
                "identity_file": "'keys/id'",
                "node_dir": "'/scratch/me'",
            }.items()
            for where, before, after in (
                ("", "[ssh]\n", "\n" + HOST),
                ("pools.", HOST, "\n"),
                ("hosts.", "[ssh.pools.lab]\nhosts = [{host = 'a', ", "}]\n"),
            )
        },
        "config_file": "[ssh]\nconfig_file = 'ssh_config'\n" + HOST,
        "pool": "[ssh]\npool = 'other'\n" + HOST + "[ssh.pools.other]\nhosts = ['b']\n",
        "pools": HOST,
        "pools.hosts": "[ssh.pools.lab]\nhosts = ['b', 'c']\n",
        "pools.shared_dir": HOST + "shared_dir = '/shared'\n",
        "hosts.host": "[ssh.pools.lab]\nhosts = [{host = 'c'}]\n",
        "hosts.name": "[ssh.pools.lab]\nhosts = [{host = 'a', name = 'first'}]\n",
        "hosts.private_ip": "[ssh.pools.lab]\nhosts = [{host = 'a', private_ip = '10.0.0.1'}]\n",
    },
    "local": {
        "price_per_hour": "[local]\nprice_per_hour = 2.5\n",
        "preempted_after": "[local]\npreempted_after = 3\n",
        "local_tasks": "local_tasks = 77\n",
        "local_warm": "local_warm = 7\n",
    },
}


def names_of(provider: str) -> set[str]:
    """Every setting that an adapter reads, from its own lists."""
    if provider == "aws":
        return set(aws._READ)
    if provider == "mithril":
        return set(mithril._READERS)
    if provider == "slurm":
        return {*slurm._READERS, *slurm.options_of.OPTIONS}
    if provider == "ssh":
        return {
            *ssh._TABLE,
            *(f"pools.{key}" for key in ssh._POOL),
            *(f"hosts.{key}" for key in ssh._HOST),
        }
    return {*local._SETTINGS, "local_tasks", "local_warm"}


@pytest.fixture
def project(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to submit from."""
    for name in ("MITHRIL_API_KEY", "MITHRIL_API_URL", "MITHRIL_PROJECT", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "project"
    found.mkdir()
    monkeypatch.setenv("FLOW_TRUSTED_DIRS", str(found))
    monkeypatch.chdir(found)
    return found


def submit(home: Path, provider: str) -> TaskRecord:
    """A task that is submitted here, and that nobody leads yet."""
    store = Store(home / "state.db")
    plan = Plan(provider, "small", 1, 1, settings=settings_here(provider).to_json())
    with launch.draft_task(home) as draft:
        record = launch.submit(
            store,
            draft,
            name="t",
            function="f",
            config={},
            plan=plan,
            call={},
            supervise=False,
        )
    store.close()
    return record


@pytest.mark.parametrize("provider", CASES)
def test_every_setting_has_a_case(provider: str) -> None:
    cases = CASES[provider]
    if provider == "slurm":
        cases = cases | dict.fromkeys(slurm.options_of.OPTIONS, "")
    assert set(cases) == names_of(provider)


@pytest.mark.parametrize("provider", CASES)
def test_each_setting_of_the_project_holds_in_a_supervisor(
    provider: str, project: Path, flow_home: Path
) -> None:
    cases = dict(CASES[provider])
    if provider == "slurm":
        cases |= {key: f"[slurm]\n{key} = {value}\n" for key, value in slurm_options().items()}
    # Another case differs in nothing but the setting.
    usual = HOST if provider == "ssh" else ""
    (project / "flow.toml").write_text(usual)
    without = settings_in_force(adapter(provider))
    expected: dict[str, str] = {}
    for key, text in cases.items():
        (project / "flow.toml").write_text(text)
        found = settings_in_force(adapter(provider))
        assert found != without or text == usual, f"{key} makes no difference"
        record = submit(flow_home, provider)
        expected[record.id] = found
        assert str(project / "flow.toml") in {
            origin for _, _, origin in settings_of_task(record).rows()
        }
    # What the directory says now, or another shell, or FLOW_HOME, is not asked any more.
    (project / "flow.toml").write_text("")
    (flow_home / "config.toml").write_text(f"[{provider}]\nno_such_setting = 1\n")
    shell = {
        **os.environ,
        "AWS_PROFILE": "another",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "MITHRIL_PROJECT": "another",
        "MITHRIL_API_URL": "https://another.example",
        "FLOW_SSH_CONFIG": "/another",
        "AWS_CONFIG_FILE": "/another",
        "AWS_SHARED_CREDENTIALS_FILE": "/another",
        "FLOW_LOCAL_TASKS": "1",
    }
    assert in_supervisors(flow_home, list(expected), shell) == expected


def slurm_options() -> dict[str, str]:
    """A value for each option that Slurm is asked for, as TOML."""
    found = {}
    for key, read in slurm.options_of.OPTIONS.items():
        for value in ("1h", "word", 7, True, ["--nice=5"], "pyxis"):
            with suppress(ValueError):
                read(value)
                found[key] = "true" if value is True else repr(value)
                break
        else:
            pytest.fail(f"no example of the option {key}: add one")
    return found


def test_variables_count_at_submission_and_are_named(
    project: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    for name, value in {
        "AWS_PROFILE": "research",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "MITHRIL_PROJECT": "team",
        "FLOW_SSH_CONFIG": "ssh_config",
        "AWS_CONFIG_FILE": "aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/credentials",
    }.items():
        monkeypatch.setenv(name, value)
    (project / "flow.toml").write_text("[mithril]\nproject = 'mine'\n[aws]\nregion = 'us-west-2'\n")
    rows = {
        name: (value, origin)
        for provider in ("aws", "mithril", "slurm", "ssh")
        for name, value, origin in settings_of_task(submit(flow_home, provider)).rows()
    }
    assert rows == {
        "aws.profile": ("research", "AWS_PROFILE"),
        "aws.region": ("us-west-2", str(project / "flow.toml")),
        "aws.shared_config_file": (str(project / "aws/config"), "AWS_CONFIG_FILE"),
        "aws.shared_credentials_file": ("/credentials", "AWS_SHARED_CREDENTIALS_FILE"),
        "aws.ssh_config": (str(project / "ssh_config"), "FLOW_SSH_CONFIG"),
        "mithril.project": ("team", "MITHRIL_PROJECT"),
        "mithril.ssh_config": (str(project / "ssh_config"), "FLOW_SSH_CONFIG"),
        "slurm.ssh_config": (str(project / "ssh_config"), "FLOW_SSH_CONFIG"),
        "ssh.config_file": (str(project / "ssh_config"), "FLOW_SSH_CONFIG"),
    }


def opened(provider: Any) -> object:
    """What an adapter asks its cloud through."""
    if provider.name == "aws":
        return provider._context.clients("ec2", "us-east-1")
    return provider._place.account.api


@pytest.mark.parametrize(
    ("provider", "variables"),
    [
        ("mithril", ("MITHRIL_API_KEY",)),
        ("aws", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    ],
)
def test_credentials_that_only_the_submitter_had_are_named_where_there_are_none(
    project: Path,
    flow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    variables: tuple[str, ...],
) -> None:
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in variables:
        monkeypatch.setenv(name, "fkey_secret")
    record = submit(flow_home, provider)
    kept = settings_of_task(record)
    assert (f"{provider} credentials", "not kept", ", ".join(variables)) in list(kept.rows())
    assert "secret" not in str(record.plan)
    # The supervisor is started again from another shell.
    for name in variables:
        monkeypatch.delenv(name)
    ask = provider_of_task(record, flow_home)
    with pytest.raises(PermissionRefused, match="submitted with those of the environment") as told:
        opened(ask)
    assert all(name in str(told.value) for name in variables)


def test_a_profile_leaves_keys_of_the_environment_their_precedence(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "research")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    assert "profile" not in settings_here("aws").values


def test_relative_paths_are_those_of_the_file_they_stand_in(
    project: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (flow_home / "config.toml").write_text(
        "[mithril]\napi_key_file = 'keys/m'\n[ssh]\nconfig_file = '~/c'\nidentity_file = 'id'\n"
    )
    (project / "flow.toml").write_text(
        "[ssh.pools.lab]\nidentity_file = '../id'\nhosts = [{host = 'a', identity_file = 'own'}, 'b']\n"
    )
    assert settings_here("mithril").values == {"api_key_file": str(flow_home / "keys/m")}
    found = settings_here("ssh")
    assert found.values["config_file"] == "/home/me/c"
    assert found.values["identity_file"] == str(flow_home / "id")
    first, second = read_pools(found)["lab"].hosts
    assert first.target["identity_file"] == str(project / "own")
    assert second.target["identity_file"] == str(project.parent / "id")


def test_a_key_is_kept_as_the_place_it_is_found_in(
    project: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "key").write_text("fkey_very_secret")
    (project / "flow.toml").write_text("[mithril]\napi_key_file = 'key'\n")
    by_file = submit(flow_home, "mithril")
    monkeypatch.setenv("MITHRIL_API_KEY", "fkey_also_secret")
    by_variable = submit(flow_home, "mithril")
    assert settings_of_task(by_file).values == {"api_key_file": str(project / "key")}
    assert settings_of_task(by_variable).values == {}
    for path in flow_home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"very_secret" not in content, path
            assert b"also_secret" not in content, path


def test_settings_survive_their_way_through_the_store(project: Path, flow_home: Path) -> None:
    (project / "flow.toml").write_text("[ssh.pools.'lab.x']\nhosts = ['a']\n")
    here = settings_here("ssh")
    record = submit(flow_home, "ssh")
    assert settings_of_task(Store(flow_home / "state.db").get_task(record.id)) == here
    assert ProviderSettings.from_json(here.to_json()) == here
    assert provider_of_task(record, flow_home).settings == here
    assert get_provider(flow_home, here).name == "ssh"
