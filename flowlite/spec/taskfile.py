"""Reads task files: the options of `TaskConfig` in YAML, with errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from flowlite.errors import SpecError
from flowlite.node.quick_dataclass import dataclass

_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_text(path: Path) -> str:
    """The text of a file that the user named. Raises SpecError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{path}: cannot be read: {why}") from None


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The content of a task file: its options, and the line of each."""

    path: Path
    options: dict[str, Any]
    lines: dict[str, int]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Reads the file.

        Raises:
            SpecError: The file cannot be read, is not YAML, or is not one mapping from option to value.
        """
        import yaml

        path = Path(path)
        text = read_text(path)
        try:
            node, options = parsed(text)
        except yaml.YAMLError as error:
            raise SpecError(f"{path}: not YAML: {_first_line(error)}") from None
        except ValueError as error:  # dates such as 2024-99-99
            raise SpecError(f"{path}: a value cannot be read: {error}") from None
        if not isinstance(node, yaml.MappingNode):
            raise SpecError(f"{path}: write one option per line, as in 'num_instances: 2'")
        lines: dict[str, int] = {}

        def note(key: yaml.Node, above: str = "") -> None:
            name, line = f"{above}{key.value}", key.start_mark.line + 1
            if name in lines:
                raise SpecError(f"{path}:{line}: {name}: given twice, first in line {lines[name]}")
            lines[name] = line

        for key, _ in node.value:
            note(key)
        for key, value in node.value:
            if isinstance(value, yaml.MappingNode):
                for inner, _ in value.value:
                    note(inner, f"{key.value}.")
            if key.value == "environment":
                options["environment"] = _as_texts(value, options["environment"])
        return cls(path, {str(name): value for name, value in options.items()}, lines)

    def locate(self, error: SpecError) -> SpecError:
        """The same error, with the place in the file for each problem."""
        return SpecError("\n".join(self._located(line) for line in str(error).splitlines()))

    def _line_of(self, option: str) -> int | None:
        """The line of an option, or of the nearest part of its path that has one."""
        while option and option not in self.lines:
            option = option.rpartition(".")[0]
        return self.lines.get(option)

    def _located(self, sentence: str) -> str:
        option, _, rest = sentence.partition(": ")
        # A problem with one variable names it: "environment: A is …".
        inner = f"{option}.{rest.split(' ', 1)[0]}"
        line = self.lines.get(inner) or self._line_of(option)
        return f"{self.path}:{line}: {sentence}" if line else f"{self.path}: {sentence}"


def parsed(text: str) -> tuple[Any, Any]:
    """The node and the value of a text in YAML. What is written with colons is a text, as `2:8` and `1:30:00`.

    YAML 1.1 takes it for a number to the base of 60: for a gang of 128 nodes, and for 5400 hours. Raises YAMLError, or
    ValueError for a value such as a date that does not exist.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        left, seen = [node], set()
        while left:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, yaml.MappingNode):
                left += [inner for pair in each.value for inner in pair]
            elif isinstance(each, yaml.SequenceNode):
                left += each.value
            elif isinstance(each, yaml.ScalarNode) and each.tag in _NUMBERS and ":" in each.value:
                each.tag = _TEXT
        return node, None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _as_texts(node: Any, values: Any) -> Any:
    """The values of variables as they are written: `010`, `1e-4` and `true` stay texts."""
    import yaml

    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        return values
    written = {
        str(key.value): value.value
        for key, value in node.value
        if isinstance(value, yaml.ScalarNode)
    }
    return {
        name: value if value is None or isinstance(value, str) else written.get(str(name), value)
        for name, value in values.items()
    }


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} in line {mark.line + 1}" if mark else str(problem)
