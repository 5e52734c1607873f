"""The public surface: every name leads somewhere, lazily and cheaply."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flowlite
import flowlite.spec


@pytest.mark.parametrize("name", flowlite.__all__)
def test_every_name_leads_somewhere(name: str) -> None:
    assert getattr(flowlite, name) is not None
    assert name in dir(flowlite)


def test_every_name_of_the_specs_leads_somewhere() -> None:
    for name in flowlite.spec.__all__:
        assert getattr(flowlite.spec, name).__name__ == name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TaskConf'"):
        _ = flowlite.spec.TaskConf


def test_every_public_error_is_exported() -> None:
    from flowlite import errors

    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    }
    assert public - {"LeaseLost"} <= set(flowlite.__all__)


def test_import_loads_nothing_it_does_not_need() -> None:
    code = "import sys; import flowlite; from flowlite import FlowApp; FlowApp();"
    heavy = "('pydantic', 'cloudpickle', 'sqlite3', 'asyncio', 'typer', 'rich', 'yaml', 'torch', 'numpy')"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
