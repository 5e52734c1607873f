"""Replies held against the OpenAPI document of the API, which lies in the vendor's own client."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

_VERSIONED = re.compile(r"_v2_.*")


def find_document(packages: Path) -> Path:
    """The document in the client's package. Raises FileNotFoundError."""
    for record in packages.glob("flow_compute-*.dist-info/RECORD"):
        for line in record.read_text().splitlines():
            name = line.partition(",")[0]
            if name.endswith("openapi.json"):
                return packages / name
    raise FileNotFoundError(f"no OpenAPI document among the files of flow-compute in {packages}")


class Document:
    """Says of a reply what is wrong with it."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        self.operations: dict[str, tuple[str, str]] = {}
        self._replies: dict[str, dict[str, Any]] = {}
        for path_name, methods in document["paths"].items():
            for method, operation in methods.items():
                name = _VERSIONED.sub("", operation["operationId"])
                self.operations[name] = (method.upper(), path_name)
                self._replies[name] = operation["responses"]
        schemas = {n: _strict(_nullable(s)) for n, s in document["components"]["schemas"].items()}
        self._components = {"schemas": schemas}

    def action_of(self, method: str, path: str) -> str:
        """The operation that a request is."""
        fits = [
            (template.count("{"), action)
            for action, (its_method, template) in self.operations.items()
            if method == its_method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
        ]
        # A fixed path may look like one with an id in it.
        return min(fits)[1]

    def problems(self, action: str, status: int, body: Any) -> list[str]:
        """What a reply has that the document forbids, or lacks; one sentence each."""
        from jsonschema import Draft202012Validator

        replies = self._replies[action]
        if str(status) not in replies:
            if status < 400:
                return [f"{action} never gives {status}"]
            # What the document is silent on, clients read as FastAPI's usual form.
            return [] if _usual_error(body) else [f"{action} {status}: not an error: {body}"]
        content = replies[str(status)].get("content", {}).get("application/json")
        if content is None:
            if status < 400:
                return [] if body is None else [f"{action} {status}: a body, {body}"]
            return [] if _usual_error(body) else [f"{action} {status}: not an error: {body}"]
        schema = {**_nullable(content["schema"]), "components": self._components}
        found = Draft202012Validator(schema).iter_errors(body)
        return [f"{action} {status} at {list(e.absolute_path)}: {e.message[:300]}" for e in found]


def _usual_error(body: Any) -> bool:
    return isinstance(body, dict) and set(body) == {"detail"} and isinstance(body["detail"], str)


def _nullable(schema: Any) -> Any:
    """`nullable` means what it did before OpenAPI 3.1."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _nullable(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A field that the document does not have is one too many."""
    schema = copy.deepcopy(schema)
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema
