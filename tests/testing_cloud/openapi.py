"""The facts of the API's OpenAPI document, which lies in the vendor's own client, as the fake takes them.

python -m tests.testing_cloud.openapi DOCUMENT > flowlite/testing/cloud/mithril/shapes.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowlite.testing.cloud.mithril.service import PARTS

_VERSIONED = re.compile(r"_v2_.*")
# What describes a shape to a reader, and says nothing of it.
_PROSE = frozenset({"title", "description", "summary", "examples", "example", "default", "tags"})


def find_document(packages: Path) -> Path:
    """The document in the client's package. Raises FileNotFoundError."""
    for record in packages.glob("flow_compute-*.dist-info/RECORD"):
        for line in record.read_text().splitlines():
            name = line.partition(",")[0]
            if name.endswith("openapi.json"):
                return packages / name
    raise FileNotFoundError(f"no OpenAPI document among the files of flow-compute in {packages}")


def table_of(document: dict[str, Any]) -> dict[str, Any]:
    """The operations that the fake implements, and the schemas that they use."""
    operations = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = _VERSIONED.sub("", operation["operationId"])
            if any(hasattr(part, name) for part in PARTS):
                operations[name] = _operation(method, path, operation)
    every = {name: _facts(each) for name, each in document["components"]["schemas"].items()}
    used: set[str] = set()
    new = set(_references(operations))
    while new:
        used |= new
        new = {each for name in new for each in _references(every[name])} - used
    return {"operations": operations, "schemas": {name: every[name] for name in sorted(used)}}


def written(table: dict[str, Any]) -> str:
    """The table as the file has it: one line for each operation and each schema."""
    blocks = []
    for kind, entries in table.items():
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entries.items())
        blocks.append(f" {json.dumps(kind)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    query = {
        each["name"]: {**_facts(each["schema"]), "required": each["required"]}
        for each in operation.get("parameters", [])
        if each["in"] == "query"
    }
    body = operation.get("requestBody")
    return {
        "method": method.upper(),
        "path": path,
        "query": query,
        "body": _schema(body) if body else None,
        "replies": {status: _schema(each) for status, each in operation["responses"].items()},
    }


def _schema(holder: dict[str, Any]) -> dict[str, Any] | None:
    content = holder.get("content", {}).get("application/json")
    return None if content is None else dict(_facts(content["schema"]))


def _facts(schema: Any, *, of_fields: bool = False) -> Any:
    """A schema without prose. `of_fields`: its keys are names of fields."""
    if isinstance(schema, list):
        return [_facts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema.rpartition("/")[2] if str(schema).startswith("#/components/") else schema
    return {
        key: _facts(value, of_fields=key == "properties" and not of_fields)
        for key, value in schema.items()
        if of_fields or key not in _PROSE
    }


def _references(shape: Any) -> Iterator[str]:
    if isinstance(shape, list):
        for each in shape:
            yield from _references(each)
    elif isinstance(shape, dict):
        for key, value in shape.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from _references(value)


if __name__ == "__main__":
    sys.stdout.write(written(table_of(json.loads(Path(sys.argv[1]).read_text()))))
