"""Task files: the same fields in YAML, errors with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.errors import SpecError
from flowlite.spec import TaskConfig


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    return path


def test_all_forms(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
name: digits
num_instances: 4
gpu: h100:8
environment: {NCCL_DEBUG: WARN, NCCL_IB_DISABLE: "0"}
volumes:
  /shared/ckpt: {name: ckpt, size_gb: 500, interface: file}
  /shared/logs: logs
retries: {max_retries: 2, delay: 1}
secrets: [HF_TOKEN]
command: [python, train.py]
mounts:
""",
    )
    config = TaskConfig.from_yaml(path)
    assert config.total_processes == 32
    assert config.volumes["/shared/ckpt"].size_gb == 500
    assert config.command == ("python", "train.py")
    assert TaskConfig.from_yaml(str(path)) == config


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("name: x\nnum_instance: 2\n", ":2: num_instance", "did you mean 'num_instances'?"),
        ("name: x\n\ngpu: nope\n", ":3: gpu", "is not a GPU"),
        ("volumes:\n  /a: {nam: x}\n", ":2: volumes./a.nam", "did you mean 'name'?"),
        ("python: 3.10\n", ":1: python", "in quotes"),
        ("max_run_time_hours: 1:30:00\n", ":1: max_run_time_hours", "'1:30:00' is not allowed"),
        ("environment:\n  A: [1]\n", ":2: environment", "write it in quotes"),
        ("name: x\nname: y\n", ":2: name", "given twice, first in line 1"),
        ("volumes:\n  /a: x\n  /a: y\n", ":3: volumes./a", "given twice, first in line 2"),
        ("files:\n  a: x\n  ./a: y\n", ":1: files", "'a' is given twice, with x and y"),
        ("- a\n- b\n", "", "write one option per line"),
        ("", "", "write one option per line"),
        ("a: [1\n", "", "not YAML"),
        ("a: !!python/object:os.system {}\n", "", "not YAML"),
        ("name: 2024-13-77\n", "", "cannot be read"),
    ],
)
def test_errors_name_file_line_and_option(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        TaskConfig.from_yaml(path)
    assert f"{path}{where}" in str(caught.value)
    assert what in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: cannot be read: No such file"):
        TaskConfig.from_yaml(tmp_path / "gone.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SpecError, match="not UTF-8"):
        TaskConfig.from_yaml(tmp_path / "b.yaml")


def test_what_has_colons_is_no_number_to_the_base_of_60(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "num_instances: 2:8\ncommand: &it [a.py, 1:30, 1:30.5, 4]\nenvironment: {PORTS: 80:80}\n",
    )
    with pytest.raises(SpecError, match="4 is not allowed; give words"):
        TaskConfig.from_yaml(path)
    path.write_text(path.read_text().replace(", 4]", "]"))
    config = TaskConfig.from_yaml(path)
    assert config.num_instances == (2, 8)
    assert config.command == ("a.py", "1:30", "1:30.5")
    assert config.environment == {"PORTS": "80:80"}


def test_variables_are_taken_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "command: 'true'\nenvironment:\n  A: 1\n  B: true\n  C: 1e-4\n  D: 010\n  E: 2024-01-01\n  F: text\n"
    )
    assert TaskConfig.from_yaml(file).environment == {
        "A": "1",
        "B": "true",
        "C": "1e-4",
        "D": "010",
        "E": "2024-01-01",
        "F": "text",
    }
    file.write_text("command: 'true'\nenvironment:\n  A: 1\n  B:\n")
    with pytest.raises(SpecError, match=r"task.yaml:4: environment: B is None"):
        TaskConfig.from_yaml(file)
