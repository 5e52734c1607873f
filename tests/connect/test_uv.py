"""uv brought along: from this machine, or from the package index, checked and kept."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from pathlib import Path

import pytest

from flowlite.connect import uv
from flowlite.errors import ProviderError
from flowlite.node.python_env.uv import platform
from tests.wheels import use_no_index

OTHER = "linux-aarch64-glibc"
PROGRAM = b"#!/bin/sh\necho uv 9.9.9\n"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, which pip and uv are told to use alone."""
    use_no_index(monkeypatch, tmp_path / "uv-cache")
    directory = tmp_path / "links"
    directory.mkdir()
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(directory))
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
    return directory


def put_wheel(directory: Path, program: bytes = PROGRAM, *, recorded: bytes | None = None) -> Path:
    raw = hashlib.sha256(program if recorded is None else recorded).digest()
    digest = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    files = {
        "uv-9.9.9.data/scripts/uv": program,
        "uv-9.9.9.dist-info/METADATA": b"Metadata-Version: 2.1\nName: uv\nVersion: 9.9.9\n",
        "uv-9.9.9.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\n"
        b"Tag: py3-none-musllinux_1_1_aarch64\n",
    }
    record = f"uv-9.9.9.data/scripts/uv,sha256={digest},{len(program)}\n"
    for name in ("METADATA", "WHEEL", "RECORD"):
        record += f"uv-9.9.9.dist-info/{name},,\n"
    path = directory / "uv-9.9.9-py3-none-musllinux_1_1_aarch64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("uv-9.9.9.dist-info/RECORD", record)
    return path


def test_the_one_of_this_machine_is_taken_for_its_like(tmp_path: Path, links: Path) -> None:
    here = uv.uv_here()
    assert here is not None, "uv is among the requirements for development"
    first = next(uv.programs_for(platform(), tmp_path))
    assert first == (here, hashlib.sha256(here.read_bytes()).hexdigest())
    assert next(uv.programs_for(platform(), tmp_path)) == first


def test_for_another_platform_it_is_fetched_once(tmp_path: Path, links: Path) -> None:
    wheel = put_wheel(links)
    (found,) = uv.programs_for(OTHER, tmp_path)
    assert found.path.read_bytes() == PROGRAM
    assert found.sha256 == hashlib.sha256(PROGRAM).hexdigest()
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
    assert found.path.is_relative_to(tmp_path / "cache" / "uv")
    wheel.unlink()
    assert list(uv.programs_for(OTHER, tmp_path)) == [found]


def test_one_that_was_changed_on_disk_is_fetched_again(tmp_path: Path, links: Path) -> None:
    put_wheel(links)
    (found,) = uv.programs_for(OTHER, tmp_path)
    found.path.write_bytes(b"something else")
    assert list(uv.programs_for(OTHER, tmp_path)) == [found]
    assert found.path.read_bytes() == PROGRAM


def test_a_wheel_that_is_not_what_it_says_is_refused(tmp_path: Path, links: Path) -> None:
    put_wheel(links, recorded=b"another program")
    with pytest.raises(ProviderError, match="damaged"):
        list(uv.programs_for(OTHER, tmp_path))
    assert not list((tmp_path / "cache" / "uv").glob("*/uv"))


def test_where_there_is_no_pip_uv_fetches_itself(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(links)
    monkeypatch.setattr(uv, "_with_pip", lambda *_: None)
    (found,) = uv.programs_for(OTHER, tmp_path)
    assert found.path.read_bytes() == PROGRAM


def test_without_either_it_says_so(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "_with_pip", lambda *_: None)
    monkeypatch.setattr(uv, "uv_here", lambda: None)
    with pytest.raises(ProviderError, match="neither pip nor uv is installed here"):
        list(uv.programs_for(OTHER, tmp_path))


def test_an_index_without_it_is_named_without_its_password(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ProviderError) as caught:
        list(uv.programs_for(OTHER, tmp_path))
    assert "uv for linux-aarch64 cannot be fetched from the package index" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_platform_that_nobody_builds_for(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="no uv for plan9-mips"):
        list(uv.programs_for("plan9-mips", tmp_path))
