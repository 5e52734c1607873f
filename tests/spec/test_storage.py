"""Volumes and mounts: names, paths, and what cannot be used together."""

from __future__ import annotations

import posixpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import SpecError
from flowlite.spec import TaskConfig, Volume
from flowlite.spec.storage import mount_path, nesting_problem


def refused(text: str, **options: Any) -> None:
    with pytest.raises(SpecError) as caught:
        TaskConfig(**options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_volume_is_given_by_name_mapping_or_value() -> None:
    full = {"name": "ckpt", "size_gb": 500, "interface": "file"}
    config = TaskConfig(volumes={"/a": "logs", "/b": full, "/c": Volume("scratch", size_gb=1)})
    assert config.volumes["/a"] == Volume("logs")
    assert config.volumes["/b"] == Volume("ckpt", size_gb=500, interface="file")
    assert config.volumes["/c"].name == "scratch"


def test_plain_form_of_a_path() -> None:
    config = TaskConfig(volumes={"/shared//ckpt/": "ckpt"}, mounts={"//data": "s3://bucket/x"})
    assert list(config.volumes) == ["/shared/ckpt"]
    assert list(config.mounts) == ["/data"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("data", "is not absolute"),
        ("~/data", "is not absolute"),
        ("", "is not absolute"),
        ("/a/../b", "write '/b' if that is meant"),
        ("/a/./b", "write '/a/b' if that is meant"),
        ("/", "choose a path below, as in '/data'"),
        ("/home", "choose a path below, as in '/home/data'"),
        ("/tmp/", "choose a path below, as in '/tmp/data'"),
        ("/proc", "belongs to the system"),
        ("/dev/shm", "belongs to the system"),
        ("/usr/local/data", "belongs to the system"),
        ("/etc/", "belongs to the system"),
        ("/a\nb", "control characters"),
        ("/a\0b", "control characters"),
        ("/" + "a" * 1100, "longer than 1024 bytes"),
    ],
)
def test_paths_that_are_refused(path: str, why: str) -> None:
    refused(why, volumes={path: "ckpt"})
    refused(why, mounts={path: "s3://bucket"})


@pytest.mark.parametrize(
    "path", ["/data", "/home/me/data", "/tmp/x", "/usrdata", "/opt/x", "/procs"]
)
def test_paths_that_are_fine(path: str) -> None:
    assert mount_path(path) == path


def test_nested_and_duplicate_paths_are_refused() -> None:
    refused("'/a/b' lies inside '/a'", volumes={"/a": "one", "/a/b": "two"})
    refused("'/a/b/c' lies inside '/a'", volumes={"/a/b/c": "one"}, mounts={"/a": "s3://bucket"})
    refused("'/a' is used twice", volumes={"/a": "one", "/a/": "two"})
    refused("'/a' is used twice", volumes={"/a": "one"}, mounts={"/a": "s3://bucket"})
    TaskConfig(volumes={"/a": "one", "/a-b": "two", "/ab/c": "three"})


def test_block_volume_on_several_nodes_is_refused_with_the_reason() -> None:
    block = {"/a": {"name": "one", "interface": "block"}}
    refused(
        "block volume, which one node alone can use, and there are 2",
        volumes=block,
        num_instances=2,
    )
    assert TaskConfig(volumes=block).volumes["/a"].interface == "block"


def test_one_volume_described_in_two_ways_is_refused() -> None:
    refused("'one' is described in two ways", volumes={"/a": "one", "/b": Volume("one", size_gb=2)})
    TaskConfig(volumes={"/a": "one", "/b": "one"})


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        ("Check_Points", "volumes./a.name: 'Check_Points' cannot name a volume"),
        ("Check_Points", "did you mean 'check-points'?"),
        ("-a", "cannot name a volume"),
        ("", "cannot name a volume"),
        ("ü", "cannot name a volume"),
        ("a" * 64, "cannot name a volume"),
        (3, "volumes./a: 3 is not allowed; give a volume's name, or a mapping"),
        ({"name": "a", "size": 3}, "volumes./a.size: unknown option; did you mean 'size_gb'?"),
        (
            {"name": "a", "size_gb": 0},
            "volumes./a.size_gb: 0 is not allowed; give a number above 0",
        ),
        ({"name": "a", "size_gb": "5"}, "volumes./a.size_gb: '5' is not allowed; give a number"),
        ({"name": "a", "interface": "nfs"}, "'nfs' is not allowed; give 'file' or 'block'"),
        ({"size_gb": 3}, "volumes./a.name: is missing"),
    ],
)
def test_wrong_volumes(volume: object, text: str) -> None:
    refused(text, volumes={"/a": volume})


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("bucket/x", "write it as in 's3://bucket/path'"),
        ("s3://", "is not a bucket"),
        ("s3://B_ucket", "is not a bucket"),
        ("gs://bucket", "gs:// is not supported"),
        (None, "give an address as in 's3://bucket/path'"),
    ],
)
def test_wrong_mounts(address: object, text: str) -> None:
    refused(text, mounts={"/a": address})


segment = st.text(alphabet="ab-.", min_size=1, max_size=3).filter(lambda s: s not in {".", ".."})
paths = st.lists(segment, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(paths, max_size=6))
def test_nesting_is_found_exactly(found: list[str]) -> None:
    pairs = [(a, b) for i, a in enumerate(found) for j, b in enumerate(found) if i != j]
    nested = any(posixpath.commonpath([a, b]) == a for a, b in pairs)
    assert bool(nesting_problem(found)) == nested


@given(paths, st.text(alphabet="/", max_size=2))
def test_the_plain_form_is_final(path: str, end: str) -> None:
    plain = mount_path(path.replace("/", "//") + end)
    assert plain == path
    assert mount_path(plain) == plain
