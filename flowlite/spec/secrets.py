"""Secrets of a task: values that workers see as environment variables and that no configuration has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import PlainValidator, model_validator

from flowlite.errors import SpecError
from flowlite.spec.base import Spec, shown
from flowlite.spec.environment import variable_name


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not allowed; give the name of a variable")
    return variable_name(value)


class Secret(Spec):
    """A variable of the workers whose value is read on this machine at submission and never kept in a configuration.

    Attributes:
        name: The variable that the workers see.
        env: The variable of this machine that has the value; by default that of the same name, unless `file` is given.
        file: The file of this machine that has the value; one newline at its end is dropped.
    """

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Annotated[str, PlainValidator(_name)]
    env: str | None = None
    file: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self, name: str, *, env: str | None = None, file: str | None = None
        ) -> None: ...

    @model_validator(mode="after")
    def _one_source(self) -> Secret:
        if self.env is not None and self.file is not None:
            raise ValueError(f"secret {self.name!r}: give either 'env' or 'file', not both")
        return self

    def resolve(self, environment: Mapping[str, str] | None = None) -> str:
        """Returns the value. Raises SpecError if there is none or it is unusable; the message never has the value."""
        if self.file is not None:
            return self._read(Path(self.file).expanduser())
        variable = self.env or self.name
        found = (os.environ if environment is None else environment).get(variable)
        if found is None:
            raise SpecError(
                f"secrets: {self.name!r} has no value: the variable {variable} is not set here; "
                f"set it, or name a file with Secret({self.name!r}, file=…)"
            )
        return found

    def _read(self, path: Path) -> str:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SpecError(f"secrets: {self.name!r} cannot be read from {path}: {why}") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if "\0" in text:
            raise SpecError(f"secrets: {self.name!r}: {path} has a zero byte in it")
        return text
