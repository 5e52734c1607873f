"""The programs that mount a bucket as a directory, best first, with their arguments, files and environment.

A credential is in a file (0600) in a separate directory, never on a command line or in an environment. The command
lines are made by pure functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which
from typing import NamedTuple

from ..mount_namespace import unmount
from ..s3.client import DEFAULT_REGION, Store
from ..system.atomic_files import write_atomically

PROFILE = "flowlite"
FUSE_DEVICE = "/dev/fuse"
TOOL_VARIABLE = "FLOW_S3_TOOL"
"""Names the tool to use; by default, the best that is installed."""

_ALSO_SEARCHED = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/opt/bin")
# Nothing else of our environment is passed: AWS_CA_BUNDLE alone prevents rclone 1.60 from starting.
_PASSED = frozenset(
    {
        *("LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("FLOW_TASK_ID", "FLOW_HOME", "FLOW_LEASE"),
    }
)
# From these variables the programs find the node's own role.
_ROLE = frozenset(
    {
        *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"),
    }
)


class Tool(NamedTuple):
    """A program that mounts buckets. `command` returns its arguments: store, directory of its files, mount point."""

    name: str
    command: Callable[[Store, Path, str], list[str]]


def mountpoint_s3(store: Store, files: Path, at: str) -> list[str]:
    """Returns the arguments of AWS's own mount-s3."""
    arguments = ["mount-s3", store.bucket, at, "--foreground", "--read-only"]
    if store.prefix:
        arguments += ["--prefix", store.below]
    if store.endpoint_url:
        arguments += ["--endpoint-url", store.endpoint_url, "--force-path-style"]
    arguments += ["--region", store.region or DEFAULT_REGION, "--metadata-ttl", "60"]
    if store.credential is not None:
        arguments += ["--profile", PROFILE]
    elif not store.own_role:
        arguments += ["--no-sign-request"]
    return arguments


def rclone(store: Store, files: Path, at: str) -> list[str]:
    """Returns the arguments of rclone; other settings are in its configuration."""
    return [
        *("rclone", "mount", f"bucket:{store.key('')}".rstrip("/"), at),
        *("--config", str(files / "rclone.conf"), "--cache-dir", str(files / "cache")),
        *("--read-only", "--file-perms", "0444", "--dir-perms", "0555"),
        # The upload time, which a listing contains. The original time costs a request for every object.
        *("--use-server-modtime", "--dir-cache-time", "5m", "--attr-timeout", "30s"),
        *("--poll-interval", "0", "--contimeout", "10s", "--timeout", "30s"),
        *("--low-level-retries", "5", "--log-level", "NOTICE"),
    ]


def rclone_config(store: Store, files: Path) -> str:
    """Returns the configuration of rclone: one remote named `bucket`, at the bucket itself."""
    remote = {
        "type": "s3",
        "provider": "Other" if store.endpoint_url else "AWS",
        "region": store.region or DEFAULT_REGION,
        "no_check_bucket": "true",
    }
    if store.endpoint_url:
        remote["endpoint"] = store.endpoint_url
    if store.endpoint_url or "." in store.bucket:
        # The certificate of AWS does not cover a name with a dot.
        remote["force_path_style"] = "true"
    if store.credential is not None or store.own_role:
        remote["env_auth"] = "true"
    if store.credential is not None:
        remote["shared_credentials_file"] = str(credentials_file(files))
        remote["profile"] = PROFILE
    lines = "".join(f"{name} = {value}\n" for name, value in remote.items())
    return f"[s3]\n{lines}\n[bucket]\ntype = alias\nremote = s3:{store.bucket}\n"


TOOLS = (
    Tool("mount-s3", mountpoint_s3),
    Tool("rclone", rclone),
)


def search_path(environment: Mapping[str, str], python: str = "") -> str:
    """Returns the search path for programs.

    It has PATH, the usual directories (ssh gives a short PATH), and the directory of the task's Python.
    """
    beside = [os.path.dirname(python)] if python else []
    home = environment.get("HOME", "")
    own = [f"{home}/.local/bin", f"{home}/bin"] if home else []
    given = environment.get("PATH", "").split(":")
    return ":".join(
        dict.fromkeys(each for each in (*given, *_ALSO_SEARCHED, *own, *beside) if each)
    )


def chosen(environment: Mapping[str, str]) -> str:
    """Returns the tool that the task's variables or those of this process name, or ""."""
    return environment.get(TOOL_VARIABLE) or os.environ.get(TOOL_VARIABLE, "")


def available(path: str, only: str = "") -> list[tuple[Tool, str]]:
    """Returns the tools found on a search path, best first, each with its program; `only` limits it to one tool."""
    wanted = [tool for tool in TOOLS if only in ("", tool.name)]
    return [(tool, found) for tool in wanted if (found := which(tool.name, path=path))]


def problem(path: str, only: str = "") -> str:
    """Returns why buckets cannot be mounted on this machine (with the tool `only`), and what to do, or ""."""
    instead = "or copy the data to a volume, or to a directory of the nodes"
    if not os.path.exists(FUSE_DEVICE):
        return (
            f"there is no {FUSE_DEVICE} here, without which no program can show a bucket as a directory; in a "
            f"container, start it with --device {FUSE_DEVICE} --cap-add SYS_ADMIN, {instead}"
        )
    if not available(path, only):
        names = ", ".join(tool.name for tool in TOOLS)
        if only:
            return (
                f"{TOOL_VARIABLE} is {only!r}, which is not installed here, or not one of {names}"
            )
        return f"none of {names} is installed here; install one (`apt install rclone fuse3`), {instead}"
    if not any(which(each, path=path) for each in unmount.PROGRAMS):
        return (
            "fusermount3 is not installed here, and without it nothing can be mounted; install it "
            f"(`apt install fuse3`), {instead}"
        )
    return ""


def credentials_file(files: Path) -> Path:
    """Returns the path of a store's credential for the tools."""
    return files / ".aws" / "credentials"


def write_files(store: Store, files: Path) -> None:
    """Writes the files that the tools read, private to this user: the credential, and rclone's configuration."""
    files.mkdir(mode=0o700, parents=True, exist_ok=True)
    credentials_file(files).parent.mkdir(mode=0o700, exist_ok=True)
    given = store.credential
    if given is not None:
        token = f"aws_session_token = {given.session_token}\n" if given.session_token else ""
        write_atomically(
            credentials_file(files),
            f"[{PROFILE}]\naws_access_key_id = {given.access_key}\n"
            f"aws_secret_access_key = {given.secret_key}\n{token}",
        )
    write_atomically(files / "rclone.conf", rclone_config(store, files))


def remove_files(files: Path) -> None:
    """Removes the files that `write_files` wrote."""
    for each in (credentials_file(files), files / "rclone.conf"):
        each.unlink(missing_ok=True)


def environment(
    store: Store, files: Path, inherited: Mapping[str, str], path: str
) -> dict[str, str]:
    """Returns the whole environment of a tool, which finds its credential in a file."""
    passed = _PASSED | _ROLE if store.own_role else _PASSED
    given = {name: value for name, value in inherited.items() if name in passed}
    given |= {"PATH": path, "HOME": str(files)}
    if store.credential is not None:
        given["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials_file(files))
    if not store.own_role:
        given |= {"AWS_CONFIG_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    return given
