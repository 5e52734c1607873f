"""OpenSSH configuration: what we read out of it is what OpenSSH reads out of it (`ssh -G`)."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowlite.cli.commands.dev import ssh_entry
from flowlite.connect.ssh import host_keys
from flowlite.connect.ssh.config import local_user, lookup
from flowlite.connect.ssh.host_keys import HostKey
from flowlite.connect.ssh.targets import parse_written, resolve_target
from flowlite.errors import ConfigError
from flowlite.node.s3 import node_credential

needs_ssh = pytest.mark.needs("ssh")
HOSTS = ("a", "ab", "lab1", "lab-2.example.org", "10.0.0.7", "other")


def openssh(path: Path, host: str, user: str | None = None) -> dict[str, list[str]]:
    """What OpenSSH makes of a configuration."""
    words = ["ssh", "-G", "-F", str(path), *(["-l", user] if user else []), "--", host]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{path.read_text()}"
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def compare(path: Path, host: str, user: str | None = None) -> None:
    """Our reading beside OpenSSH's."""
    theirs = openssh(path, host, user)
    written = host if user is None else {"host": host, "user": user}
    ours = resolve_target(written, path)
    assert ours.host == theirs["hostname"][0]
    assert ours.user == theirs["user"][0]
    assert str(ours.port) == theirs["port"][0]
    assert ours.identities_only == (theirs["identitiesonly"][0] == "yes")
    assert (ours.family or "any") == theirs["addressfamily"][0]
    assert ours.bind_address == theirs.get("bindaddress", [""])[0]
    options = lookup(host, [path], user=user)
    if ours.explicit:
        home = str(Path("~").expanduser())
        values = [os.path.expanduser(v).replace("%d", home) for v in theirs["identityfile"]]
        assert list(ours.identities) == [value for value in values if value != "none"]
    alias = theirs.get("hostkeyalias", [""])[0]
    assert options.get("hostkeyalias", [""])[0] == alias
    jump = theirs.get("proxyjump", ["none"])[0]
    assert (options.get("proxyjump", ["none"])[0].lower() == "none") == (jump == "none")
    command = theirs.get("proxycommand", [""])[0]
    assert options.get("proxycommand", ["none"])[0] == (command or "none")


# Properties

names = st.sampled_from(HOSTS)
patterns = st.sampled_from(
    [
        "*",
        "a*",
        "?",
        "??",
        "lab*",
        "!lab1",
        "!a*",
        "*.example.org",
        "10.0.?.*",
        "other",
        "lab1",
        "ab",
        "[a]b",
        "l?b1",
    ]
)
users = st.sampled_from(["ann", "bob", "root"])
values = st.one_of(
    st.tuples(st.just("HostName"), st.sampled_from(["h-%h.net", "10.9.8.7", "%h"])),
    st.tuples(st.just("Port"), st.integers(1, 65535).map(str)),
    st.tuples(st.just("User"), users),
    st.tuples(
        st.just("IdentityFile"),
        st.sampled_from(["~/k1", "/keys/k2", '"/key s/k3"', "%d/k4", "none", "'/k 5'"]),
    ),
    st.tuples(st.just("IdentitiesOnly"), st.sampled_from(["yes", "no"])),
    st.tuples(st.just("HostKeyAlias"), st.sampled_from(["k-one", "k-two"])),
    st.tuples(st.just("ProxyJump"), st.sampled_from(["gate", "none", "u@gate:77"])),
    st.tuples(st.just("ProxyCommand"), st.sampled_from(["nc %h %p", "none"])),
    st.tuples(st.just("AddressFamily"), st.sampled_from(["any", "inet", "inet6"])),
    st.tuples(st.just("BindAddress"), st.sampled_from(["10.1.1.1", "fd00::1"])),
    st.tuples(st.just("Compression"), st.just("yes")),
)
layout = st.sampled_from(["{} {}", "  {}   {}  ", "\t{}={}", "{} = {}", "  {} {}\r"])
criteria = st.one_of(
    st.tuples(
        st.sampled_from(["host", "!host", "originalhost"]),
        st.sampled_from(["a*", "lab1,ab", "10.*", "*", "h-*"]),
    ),
    st.tuples(st.sampled_from(["user", "!user"]), st.sampled_from(["ann", "ann,bob", "*"])),
    st.tuples(st.just("localuser"), st.sampled_from([local_user(), "nobody-else"])),
    st.tuples(st.just("exec"), st.sampled_from(['"true"', '"false"', '"test %h = lab1"'])),
).map(" ".join)
heads = st.one_of(
    st.lists(patterns, min_size=1, max_size=3).map(lambda found: "Host " + " ".join(found)),
    st.lists(criteria, min_size=1, max_size=2).map(lambda found: "Match " + " ".join(found)),
    st.sampled_from(["Match all", "Match final", "Match final host h-*", "Match !final all"]),
)


def _block(head: str, lines: list[tuple[tuple[str, str], str]]) -> str:
    text = "".join(form.format(*pair) + "\n" for pair, form in lines)
    return f"# a comment\n\n{head}\n{text}"


blocks = st.builds(_block, heads, st.lists(st.tuples(values, layout), max_size=4))
files = st.lists(blocks, max_size=6).map("".join)


@needs_ssh
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(files, names, st.none() | users)
def test_as_openssh_reads_it(tmp_path: Path, text: str, host: str, user: str | None) -> None:
    path = tmp_path / "config"
    # OpenSSH refuses a host that is its own jump host when it connects; we do when we read.
    path.write_text("Host gate\n ProxyJump none\n" + text)
    compare(path, host, user)


@needs_ssh
@pytest.mark.parametrize(
    "text",
    [
        'Host "a"\n User quoted\n',
        "host a\n USER lower\n port 7 # why\n",
        "Host *\n User first\nHost a\n User second\n",
        "User early\nHost a\n User late\n",
        "Host ab !a a\n Port 9\n",
        "Host !ab\n Port 9\nHost * !ab\n Port 11\n",
        "Host a\n IdentityFile /x\n IdentityFile /x\n IdentityFile /y\n",
        "Host A\n Port 9\n",
        "Host ab\n User x\nHost a*\n Port 9\n IdentityFile /x\nHost b a\n User y\n Port 8\n IdentityFile /y\n",
        "Host a a\n IdentityFile /x\nHost c\nHost a\nMatch all\n IdentityFile /y\nHost a\n IdentityFile /z\n",
        "Match host A\n Port 9\n",
        "Host a\n HostName b\nMatch host b\n Port 9\n",
        "Host a\n HostName b\nMatch originalhost a host b\n Port 9\n",
        "Host a\n Port 7\nMatch host=a user=root\n User x\n",
        "Host a\n ProxyCommand ssh -W '%h:%p' \"gate\" # not a comment\n",
    ],
)
def test_corners(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    for host in ("a", "ab", "A"):
        compare(path, host)


@needs_ssh
def test_include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("one.conf", "User one\nHost ab\n Port 11\n"),
        ("two.conf", "Host *\n IdentityFile /two\n"),
        ("deep", f"Include {tmp_path}/two.conf\nHostName deep-%h\n"),
    ):
        (tmp_path / name).write_text(text)
    path = tmp_path / "config"
    path.write_text(
        f"Host a*\n Include {tmp_path}/on*.conf {tmp_path}/missing\n HostKeyAlias k\n"
        f"Match host other\n Include {tmp_path}/deep\n Port 12\n"
        f"Host ab lab1\n IdentityFile /before\n Include {tmp_path}/one.conf\n IdentityFile /after\n"
        f"Host *\n Include {tmp_path}/two.conf\n"
    )
    for host in HOSTS:
        compare(path, host)


def test_files_that_include_each_other(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Include {path}\n")
    with pytest.raises(ConfigError, match="include each other"):
        lookup("a", [path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host\n", "line 1: host has no value"),
        ("Host a\n\n Port\n", "line 3: port has no value"),
        ("Host a\n Port 70000\n", "'70000' is not a port"),
        ('Host "a\n', "line 1: a quote is not closed"),
        ("Match sparkling a\n", "line 1: Match sparkling is not known"),
        ("Match host\n", "line 1: Match host has no value"),
        (
            "Match localnetwork 10.0.0.1/8\n",
            "line 1: Match localnetwork: 10.0.0.1/8 has host bits set",
        ),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "leads in a circle"),
    ],
)
def test_what_is_wrong_is_named(config: Callable[..., Path], text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_target("a", config(text))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("networks", "holds"),
    [
        ("localnetwork 127.0.0.0/8", True),
        ("localnetwork=198.51.100.0/24,127.0.0.1", True),
        ("localnetwork 198.51.100.0/24,2001:db8::/32", False),
        ("!localnetwork 198.51.100.0/24", True),
        ("localnetwork 127.0.0.0/8 host other", False),
    ],
)
def test_the_networks_of_this_machine(
    config: Callable[..., Path], networks: str, holds: bool
) -> None:
    """As ssh from 9.4 on; an older one refuses the file."""
    text = f"Match {networks}\n User here\nHost *\n User elsewhere\n"
    assert resolve_target("a", config(text)).user == ("here" if holds else "elsewhere")


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    target = resolve_target("somewhere", tmp_path / "none")
    assert (target.host, target.port, target.user) == ("somewhere", 22, local_user())


# Targets


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lab1", {"host": "lab1"}),
        ("ann@10.0.0.3:2222", {"host": "10.0.0.3", "user": "ann", "port": "2222"}),
        ("ssh://ann@lab:22", {"host": "lab", "user": "ann", "port": "22"}),
        ("fe80::1", {"host": "fe80::1"}),
        ("[fe80::1]:7", {"host": "fe80::1", "port": "7"}),
        ("ann@[::1]", {"host": "::1", "user": "ann"}),
        ("ann@corp.example@lab:77", {"host": "lab", "user": "ann@corp.example", "port": "77"}),
    ],
)
def test_what_is_written(text: str, parts: dict[str, str]) -> None:
    assert parse_written(text) == {"name": text, **parts}


@pytest.mark.parametrize("text", ["", "-oProxyCommand=x", "a b", "a/b", "a'b", "a:b:", "@"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ConfigError, match="give a name"):
        resolve_target(text, "/nowhere")


def test_a_zone_is_no_token() -> None:
    assert resolve_target("fe80::1%hsn0", "/nowhere").host == "fe80::1%hsn0"


def test_a_table_wins_over_the_configuration(config: Callable[..., Path]) -> None:
    path = config("Host lab\n HostName 10.0.0.1\n User ann\n Port 7\n IdentityFile /a\n")
    written = {"host": "lab", "user": "bob", "port": 9, "identity_file": "/b", "name": "first"}
    target = resolve_target(written, path)
    assert (target.name, target.host, target.user, target.port) == ("first", "10.0.0.1", "bob", 9)
    assert (target.identities, target.explicit) == (("/b",), True)
    assert target.label == "first (bob@10.0.0.1:9)"
    with pytest.raises(ConfigError, match="'gpus' is not one of"):
        resolve_target({"host": "lab", "gpus": "h100:8"}, path)
    with pytest.raises(ConfigError, match="'x' is not a port"):
        resolve_target({"host": "lab", "port": "x"}, path)


def test_the_way_through_other_hosts(config: Callable[..., Path]) -> None:
    path = config(
        "Host inner\n HostName 10.1.1.1\n ProxyJump first,ann@second:77\n",
        "Host first\n HostName 1.1.1.1\n ProxyJump outermost\n",
        # What comes later in a chain is reached through those before it, whatever its own entry says.
        "Host second\n HostName 2.2.2.2\n ProxyJump elsewhere\n",
    )
    target = resolve_target("inner", path)
    assert [hop.name for hop in target.jump] == ["outermost", "first", "ann@second:77"]
    assert [hop.host for hop in target.jump] == ["outermost", "1.1.1.1", "2.2.2.2"]
    assert all(hop.jump == () for hop in target.jump)
    assert target.jump[-1].address == "ann@2.2.2.2:77"
    assert "through outermost, first" in target.label
    assert resolve_target({"host": "inner", "jump": "none"}, path).jump == ()


def test_the_name_of_a_key(config: Callable[..., Path]) -> None:
    path = config("Host a\n Port 77\n HostName Lab\nHost b\n HostKeyAlias kept\n Port 5\n")
    assert resolve_target("a", path).host_key_name == "[lab]:77"
    assert resolve_target("b", path).host_key_name == "kept"
    assert resolve_target("c", path).host_key_name == "c"


def test_a_key_is_found_under_an_alias_in_capital_letters(config: Callable[..., Path]) -> None:
    """OpenSSH compares such names in lower case."""
    target = resolve_target("b", config("Host b\n HostName 10.0.0.3\n HostKeyAlias Lab1\n"))
    key = HostKey("ssh-ed25519", b"key")
    host_keys.trust(target, key)
    host_keys.check(target, key)
    assert host_keys.pinned_lines(target) == [f"lab1 {key.line}"]


def test_the_variable_names_the_file(
    config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_SSH_CONFIG", str(config("Host a\n Port 77\n")))
    assert resolve_target("a").port == 77


def test_a_user_id_without_an_account_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker run --user 23456` gives one."""

    def no_account(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FLOW_SSH_CONFIG", raising=False)
    assert resolve_target("10.0.0.1").host == "10.0.0.1"
    assert ssh_entry.include_line(Path("/f")) == "Include /f/dev/*/config"
    assert node_credential._file() is None
