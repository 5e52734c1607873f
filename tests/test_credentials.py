"""Keys of providers: where they may lie, and that nobody gets to see them."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from flowlite.cli import output
from flowlite.errors import PermissionRefused
from flowlite.output import redact
from flowlite.settings.credentials import Key, find_key

SECRET = "fkey_0123456789abcdef"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_kept_out", set())
    monkeypatch.setattr(redact, "_ours", redact.Mask())
    monkeypatch.setitem(sys.modules, "keyring", None)
    monkeypatch.delenv("CLOUD_KEY", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def find(file: Path | None = None, **more: object) -> Key | None:
    return find_key("cloud", variable="CLOUD_KEY", file=file, **more)  # type: ignore[arg-type]


def test_the_variable_goes_first_then_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() is None
    found = find(file)
    assert found is not None
    assert (found.value, found.origin) == (SECRET, str(file))
    monkeypatch.setenv("CLOUD_KEY", "another-key")
    assert find(file) == Key("another-key", "CLOUD_KEY")


def test_the_usual_file_is_looked_at_only_where_it_is(file: Path, tmp_path: Path) -> None:
    assert find(usual=tmp_path / "none") is None
    assert find(usual=file) == Key(SECRET, str(file))


def test_the_keyring_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = types.SimpleNamespace(get_password=lambda service, name: f"{service}-{name}-key")
    monkeypatch.setitem(sys.modules, "keyring", ring)
    assert find() == Key("flowlite-cloud-key", "the keyring")


def test_a_keyring_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(service: str, name: str) -> str:
        raise RuntimeError("locked")

    monkeypatch.setitem(sys.modules, "keyring", types.SimpleNamespace(get_password=fail))
    with pytest.raises(PermissionRefused, match="RuntimeError: locked; set a variable"):
        find()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_file_that_others_can_read_is_refused_with_the_remedy(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(PermissionRefused, match=f"chmod 600 {file}") as caught:
        find(file)
    assert SECRET not in str(caught.value)


def test_other_things_than_plain_files_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(PermissionRefused, match="must lie in a plain file"):
        find(pipe)
    with pytest.raises(
        PermissionRefused, match=f"^{tmp_path}: an API key must lie in a plain file"
    ):
        find(tmp_path)
    with pytest.raises(PermissionRefused, match="cannot be read: No such file"):
        find(tmp_path / "none")


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b"two words", b"k\x00ey", "schlüssel".encode(), b"\xff"]
)
def test_what_cannot_be_a_key_is_refused_without_showing_it(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(PermissionRefused) as caught:
        find(file)
    words = content.decode(errors="replace").strip()
    assert not words or words not in str(caught.value)


def test_a_key_is_shown_nowhere(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find_key("cloud", variable="CLOUD_KEY", file=file)
    assert SECRET not in f"{found} {found!r} {[found]}"
    output.say(f"the key is {SECRET}")
    output.tell(f"https://user:{SECRET}@cloud/")
    output.print_json("x", {"key": SECRET})
    error = RuntimeError(f"refused: Bearer {SECRET}")
    error.add_note(SECRET)
    output.report(error, json=True)
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert said.out.count("***") == 4
