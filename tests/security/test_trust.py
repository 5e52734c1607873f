"""What a project's `flow.toml` may do before its owner has read it: nothing that runs, and nothing that redirects."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.api.adapters import settings_here
from flowlite.cli import main
from flowlite.connect.ssh.targets import is_host_name, is_user_name, resolve_target
from flowlite.errors import ConfigError
from flowlite.settings import flow_home, trust
from flowlite.settings.settings import load_settings, read_project
from flowlite.spec.slurm import OPTIONS as SLURM_OPTIONS
from provider_adapters.aws.settings import _READ as AWS_KEYS
from provider_adapters.mithril.settings import _READERS as MITHRIL_KEYS
from provider_adapters.slurm.settings import _READERS as SLURM_KEYS
from provider_adapters.ssh.pools import _HOST, _POOL, _TABLE, read_pools
from tests.components import need

READING = (
    ("hosts", "list"),
    ("hosts", "check"),
    ("offers",),
    ("gc", "--dry-run"),
    ("volumes", "list"),
    ("run", "--dry-run", "--provider", "ssh", "--", "true"),
    ("providers", "check"),
    ("status",),
    ("config", "list"),
    ("cost",),
)
REFUSED = READING[:7]


@pytest.fixture
def project(tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that one merely stands in, with a file that wants to run something."""
    place = tmp_path / "project"
    place.mkdir()
    ran = tmp_path / "ran"
    (place / "ssh_config").write_text(
        f'Match exec "touch {ran}-match"\n  Port 1\n'
        f"Host gpu1\n  HostName 127.0.0.1\n  ProxyCommand touch {ran}-proxy\n"
    )
    (place / "flow.toml").write_text(
        f'provider = "ssh"\n[ssh]\nconfig_file = "{place}/ssh_config"\n[ssh.pools.lab]\nhosts = ["gpu1"]\n'
    )
    monkeypatch.chdir(place)
    return place


def flow(*words: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, out.getvalue() + err.getvalue()


def trust_here() -> None:
    found = read_project()
    assert found is not None
    trust.trust(found.path, found.content, found.tables, flow_home.home())


def ran(project: Path) -> list[str]:
    return sorted(each.name for each in project.parent.glob("ran-*"))


def options(name: str = "ssh") -> dict[str, Any]:
    return load_settings().provider_options(name)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_command_runs_what_a_project_names(project: Path, words: tuple[str, ...]) -> None:
    code, said = flow(*words)

    assert ran(project) == []
    if words in REFUSED:
        assert "flow config trust" in said, said
        assert "config_file" in said
    else:
        assert code == 0, said


def test_what_was_trusted_counts(project: Path) -> None:
    code, said = flow("config", "list")
    assert "(not trusted)" in said
    assert "flow config trust" in said

    code, said = flow("config", "trust")
    assert code == 0, said
    assert "ssh.config_file" in said
    assert f"{project}/ssh_config" in said

    assert "(trusted)" in flow("config", "list")[1]
    flow("hosts", "list")
    assert ran(project) == ["ran-match", "ran-proxy"]

    assert flow("config", "trust", "--withdraw")[0] == 0
    assert "is not trusted yet" in flow("hosts", "list")[1]


@pytest.mark.parametrize("file", ["flow.toml", "ssh_config", "included", "new.conf"])
def test_whatever_has_changed_needs_trust_again(project: Path, file: str) -> None:
    included = project / "included"
    included.write_text("Host b\n")
    with (project / "ssh_config").open("a") as config:
        config.write(f'Include\t"{included}" {project}/*.conf\n')
    flow("config", "trust")
    assert options()["config_file"]

    with (project / file).open("a") as changed:
        changed.write("# more\n")

    with pytest.raises(ConfigError, match=r"has changed since it was trusted.*flow config trust"):
        options()


def test_what_is_used_is_what_was_compared(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who can write the file changes it for a moment while it is read."""
    trust_here()
    file = project / "flow.toml"
    trusted = file.read_bytes()
    # With another OpenSSH configuration, its hash would differ.
    theirs = trusted.replace(b"[ssh]", b'[ssh]\npython = "/tmp/theirs"')
    read, reads = trust.content_of, 0

    def flicker(path: str | Path) -> bytes | None:
        nonlocal reads
        if os.path.basename(path) != "flow.toml":
            return read(path)
        reads += 1
        return theirs if reads == 1 else trusted

    monkeypatch.setattr(trust, "content_of", flicker)
    with pytest.raises(ConfigError, match="has changed since"):
        options()
    # What is accepted is what was shown, which is not what the file has now.
    reads = 0
    trust_here()
    with pytest.raises(ConfigError, match="has changed since"):
        options()


def test_what_runs_nothing_needs_no_trust(project: Path) -> None:
    (project / "flow.toml").write_text(
        'provider = "ssh"\nmax_cost = 3\n[ssh]\npool = "lab"\nuser = "ada"\n[ssh.pools.lab]\n'
        'shared_dir = "/nfs"\nhosts = ["gpu1", "ada@10.0.0.3:2222", {host = "g", gpus = "h100:8"}]\n'
        '[slurm]\nlogin = "ada@cluster"\npartition = "main"\n'
        '[aws]\nregion = ["us-east-1"]\nprofile = "research"\n'
    )
    assert len(read_pools(settings_here("ssh"))["lab"].hosts) == 3
    assert options("slurm")["partition"] == "main"
    assert options("aws")["region"] == ["us-east-1"]
    assert all(entry.trusted is None for entry in load_settings().provider_entries())


def test_it_does_not_say_what_a_cap_allows(project: Path) -> None:
    """With a price of nothing, no question is asked, and `max_cost` never ends the machines."""
    for table in ("[aws.prices]\n'p5.48xlarge' = 0.01\n", "[aws]\ncny_per_usd = 7000\n"):
        (project / "flow.toml").write_text(f"provider = 'aws'\n{table}")
        with pytest.raises(ConfigError, match=r"caps are reckoned with .*flow config trust"):
            options("aws")
        assert "(not trusted)" in flow("config", "list")[1]
        assert flow("config", "trust")[0] == 0
        assert options("aws")


@pytest.mark.parametrize("value", ["false", "'no'", "true"])
def test_it_does_not_keep_you_from_being_asked(project: Path, flow_home: Path, value: str) -> None:
    (project / "flow.toml").write_text(f"confirm = {value}\nmax_cost = 3\n")
    asks = value == "true"
    assert load_settings()["confirm"] is True
    assert load_settings()["max_cost"] == 3
    assert ("confirm" in flow("config", "trust")[1]) is not asks
    assert load_settings()["confirm"] is asks
    with (project / "flow.toml").open("a") as changed:
        changed.write("# more\n")
    assert load_settings()["confirm"] is True
    # The user's own file and variable count.
    (flow_home / "config.toml").write_text("confirm = false\n")
    assert load_settings()["confirm"] is asks
    assert load_settings(environment={"FLOW_CONFIRM": "0", **os.environ})["confirm"] is False


@pytest.mark.parametrize(
    "text",
    [
        "[providers.ssh]\nconfig_file = '/x'\n",
        "[ssh.pools.lab]\npython = '/tmp/evil'\nhosts = ['a']\n",
        "[ssh.pools.lab]\nhosts = ['a', {host = 'b', python = '/tmp/evil'}]\n",
        "[[ssh.pools.lab.hosts]]\nhost = 'b'\nidentity_file = '/tmp/key'\n",
        "[ssh.pools.python]\nnode_dir = '/tmp/evil'\nhosts = ['a']\n",
    ],
)
def test_wherever_it_stands(project: Path, text: str) -> None:
    (project / "flow.toml").write_text(text)
    with pytest.raises(ConfigError, match="flow config trust"):
        options()
    # The files of others are others': this one says nothing of Slurm.
    assert options("slurm") == {}


def test_a_pool_may_have_any_name(project: Path) -> None:
    (project / "flow.toml").write_text("[ssh.pools.python]\nhosts = ['a']\n")
    assert options()["pools"]["python"] == {"hosts": ["a"]}


def test_the_file_of_flow_home_needs_no_trust(project: Path, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[ssh]\nconfig_file = '/mine'\n")
    (project / "flow.toml").write_text("[ssh.pools.lab]\nhosts = ['a']\n")
    assert options()["config_file"] == "/mine"


def test_trust_is_of_one_place(project: Path, tmp_path: Path) -> None:
    flow("config", "trust")
    other = tmp_path / "other"
    other.mkdir()
    (other / "flow.toml").write_bytes((project / "flow.toml").read_bytes())
    with pytest.raises(ConfigError, match="is not trusted yet"):
        load_settings(directory=other).provider_options("ssh")
    load_settings(directory=project).provider_options("ssh")


@pytest.mark.parametrize("how", ["command", "variable"])
def test_a_link_to_a_trusted_file_is_not_trusted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The file names its OpenSSH configuration relative to itself; beside the link is another one."""
    (project / "flow.toml").write_text('[ssh]\nconfig_file = "ssh_config"\n')
    if how == "command":
        trust_here()
    else:
        monkeypatch.setenv(trust.VARIABLE, str(project))
    assert options()["config_file"] == "ssh_config"
    other = tmp_path / "other"
    other.mkdir()
    (other / "flow.toml").symlink_to(project / "flow.toml")
    (other / "ssh_config").write_text("Match all\n  ProxyCommand touch /tmp/theirs\n")
    monkeypatch.chdir(other)
    with pytest.raises(ConfigError, match="is not trusted yet"):
        options()
    # Accepted for itself, it is trusted with the configuration that is used.
    trust_here()
    assert options()["config_file"]
    (other / "ssh_config").write_text("# changed\n")
    with pytest.raises(ConfigError, match="has changed since"):
        options()


def test_the_configuration_that_is_used_is_the_one_that_was_trusted(project: Path) -> None:
    """`sub/../ssh_config` is beside the file, also where `sub` is a link."""
    elsewhere = project.parent / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    (project / "sub").symlink_to(elsewhere)
    (project / "flow.toml").write_text('[ssh]\nconfig_file = "sub/../ssh_config"\n')
    trust_here()
    assert settings_here("ssh").values["config_file"] == f"{project}/ssh_config"
    (project / "ssh_config").write_text("# changed\n")
    with pytest.raises(ConfigError, match="has changed since"):
        options()


def test_directories_named_by_the_environment(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("", ".", "1", f"{tmp_path}/proj", f"{project}/flow.toml", f"{tmp_path}/none"):
        monkeypatch.setenv(trust.VARIABLE, wrong)
        with pytest.raises(ConfigError, match="is not trusted yet"):
            options()
    for right in (str(project), f"/nowhere:{project}/", str(tmp_path)):
        monkeypatch.setenv(trust.VARIABLE, right)
        assert options()["config_file"]


@pytest.mark.parametrize("whose", ["file", "directory", "writable"])
def test_above_a_directory_nobody_else_decides(
    tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """A `flow.toml` further up counts only where no other user could have put it."""
    shared = tmp_path / "shared"
    below = shared / "mine" / "project"
    below.mkdir(parents=True)
    file = shared / "flow.toml"
    file.write_text("provider = 'ssh'\n")
    monkeypatch.chdir(below)
    assert load_settings().provider == "ssh"
    if whose == "writable":
        shared.chmod(0o1777)
    else:
        need("root")
        os.chown(file if whose == "file" else shared, 4001, 4001)
    assert load_settings().provider == "local"


@pytest.mark.needs("root")
def test_a_file_of_another_user_in_tmp_decides_nothing(project: Path) -> None:
    """It could have machines rented, or code sent to an account of theirs."""
    (project / "flow.toml").write_text("provider = 'aws'\nmax_cost = 500\n")
    os.chown(project / "flow.toml", 4001, 4001)
    # In a directory of people who work together, it is the project's.
    assert load_settings().provider == "aws"
    project.chmod(0o1777)
    assert load_settings().provider == "local"
    os.chown(project / "flow.toml", 0, 0)
    assert load_settings().provider == "aws"


@pytest.mark.needs("root")
@pytest.mark.parametrize("what", ["config.toml", "known_hosts", "state.db"])
def test_a_home_in_which_others_have_put_something_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    home = tmp_path / "home-of-group"
    home.mkdir()
    home.chmod(0o775)
    monkeypatch.setenv("FLOW_HOME", str(home))
    (home / what).write_text("")
    os.chown(home / what, 4001, 4001)
    for use in (load_settings, flow_home.ensure_home):
        with pytest.raises(ConfigError, match=f"{what} in it belongs to another user.*4001"):
            use()
    os.chown(home / what, 0, 0)
    load_settings()
    assert flow_home.ensure_home().stat().st_mode & 0o777 == 0o700


def test_settings_are_read_in_a_directory_that_was_removed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings().provider == "local"


def test_trust_is_given_and_needed_below_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    with pytest.raises(ConfigError, match="is not trusted yet"):
        options()
    code, said = flow("config", "trust")
    assert code == 0
    assert f"trusted as they are now: {project}/flow.toml, {project}/ssh_config" in said
    assert options()["config_file"] == f"{project}/ssh_config"
    assert f"{project}/flow.toml is no longer trusted" in flow("config", "trust", "--withdraw")[1]


def test_a_list_of_trust_that_is_broken_is_named(project: Path, flow_home: Path) -> None:
    (flow_home / "trusted.json").write_text("{")
    with pytest.raises(ConfigError, match=r"trusted\.json: cannot be understood; remove it"):
        options()


def test_special_files_are_not_read(project: Path) -> None:
    (project / "flow.toml").write_text("[ssh]\nconfig_file = '/dev/zero'\n")
    with pytest.raises(ConfigError, match="flow config trust"):
        options()
    code, said = flow("config", "trust")
    assert code == 2
    assert "/dev/zero: no plain file" in said


def test_json(project: Path) -> None:
    data = json.loads(flow("config", "list", "--json")[1])["data"]
    by_name = {each["name"]: each["trusted"] for each in data}
    assert by_name["ssh.config_file"] is False
    assert by_name["ssh.pools.lab.hosts"] is None
    told = json.loads(flow("config", "trust", "--json")[1])["data"]
    assert told["trusted"] is True
    assert told["settings"] == ["ssh.config_file"]
    assert told["files"] == [f"{project}/flow.toml", f"{project}/ssh_config"]


def test_every_setting_was_judged() -> None:
    """A new setting of an adapter must be looked at: it stands in one of these lists."""
    harmless = {
        "ssh": {"host", "hosts", "name", "private_ip", "gpus", "user", "port", "shared_dir"}
        | {"pool", "pools"},
        "slurm": {"login", "cluster", "lease", "signal_seconds", "partition", "account", "qos"}
        | {"constraint", "reservation", "gres", "gpus_per_node", "mem", "exclusive", "nodelist"}
        | {"exclude", "requeue", "container"},
        "aws": {"region", "zones", "profile", "subnet", "root_gb", "placement_group", "public_ip"}
        | {"capacity_reservation", "capacity_block", "user", "lease", "boot_timeout", "jump"}
        | {"listing_lag"},
        "mithril": {"project", "region", "user", "lease", "boot_timeout", "jump", "listing_lag"},
    }
    known = {
        "ssh": {*_HOST, *_POOL, *_TABLE},
        "slurm": {*SLURM_KEYS, *SLURM_OPTIONS},
        "aws": set(AWS_KEYS),
        "mithril": set(MITHRIL_KEYS),
    }
    for provider, keys in known.items():
        sensitive = set(trust.SENSITIVE[provider])
        assert not sensitive & harmless[provider]
        assert keys == sensitive | harmless[provider], provider


def test_of_an_unknown_adapter_everything_needs_trust() -> None:
    assert [key for key, _ in trust.needs_trust("other", {"anything": 1})] == ["anything"]


# Names that would do something in a command

EVIL = [
    "u;id>FILE;",
    "$(id)",
    "`id`",
    "a|b",
    "a&b",
    "a>b",
    "a<b",
    "a\nb",
    "a b",
    "a'b",
    'a"b',
    "-oX",
    "a{b}",
    "$IFS",
    "a\tb",
    "a\x1bb",
]


@pytest.mark.parametrize("name", EVIL)
def test_a_name_with_shell_characters_reaches_no_command(tmp_path: Path, name: str) -> None:
    config = tmp_path / "config"
    seen = tmp_path / "seen"
    config.write_text(
        f'Match exec "echo %r %h %n >> {seen}"\n  Port 23\nHost *\n  ProxyCommand echo %r %h >> {seen}\n'
    )
    tables: list[dict[str, object]] = [
        {"host": "h", "user": name},
        {"host": name},
        {"host": "h", "jump": f"{name}@gate"},
        {"host": "h", "jump": f"gate,{name}"},
    ]
    for table in tables:
        with pytest.raises(ConfigError, match=r"invalid characters|give a name"):
            resolve_target(table, config)
    written = seen.read_text() if seen.exists() else ""
    assert name not in written


def test_what_a_configuration_makes_of_a_name_is_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n  HostName x;id\nHost b\n  User x;id\n")
    for name in ("a", "b"):
        with pytest.raises(ConfigError, match="has invalid characters"):
            resolve_target(name, config)


def test_a_pool_names_the_host_at_fault(project: Path) -> None:
    for entry in ('"u;id>FILE;@127.0.0.1"', '{host = "h", user = "u;id"}', '"$(id)"'):
        (project / "flow.toml").write_text(f"[ssh.pools.lab]\nhosts = [{entry}]\n")
        with pytest.raises(ConfigError, match=r"flow\.toml: \[ssh\.pools\.lab\] hosts\[0\]"):
            read_pools(settings_here("ssh"))


@pytest.mark.parametrize(
    "name", ["root", "ada.l", "svc_1", "DOMAIN\\ada", "ada@corp", "a+b", "ünal", "10.0.0.3", "x%y"]
)
def test_usual_names_are_fine(name: str) -> None:
    assert is_user_name(name)


@given(st.text(min_size=1, max_size=12))
def test_no_name_that_is_let_through_means_anything_to_a_shell(name: str) -> None:
    import shlex

    if is_host_name(name):
        plain = name.replace("#", "").replace("~", "").replace("*", "").replace("?", "")
        assert shlex.split(name, comments=False) == [name]
        assert not set(plain) & set(";|&<>()$`\\\"' \t\n")
        assert not name.startswith("-")
