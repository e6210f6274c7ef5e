"""The JSON schema of a pydantic model, as people write one: BaseModel -> dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def whole(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model, with the models inside it in their places."""
    made = model.model_json_schema()
    defs = made.pop("$defs", {})
    return tidy(made, defs)


def tidy(node: Any, defs: Mapping[str, Any]) -> Any:
    """Return a schema as people write it: models in their place, null beside its type, no titles, no defaults."""
    if isinstance(node, list):
        return [tidy(one, defs) for one in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name == "Accuracy":
        return {"$ref": "#/$defs/accuracy"}
    if name:
        node = {
            **{k: v for k, v in defs[name].items() if k != "description"},
            **{k: v for k, v in node.items() if k != "$ref"},
        }
    repeated = {"title": str, "type": str if {"enum", "const"} & set(node) else ()}
    # Where a title is a schema itself, it is a field of that name.
    node = {
        k: tidy(v, defs)
        for k, v in node.items()
        if (k, v) != ("additionalProperties", True) and k != "default" and not isinstance(v, repeated.get(k, ()))
    }
    kinds = node.get("anyOf", [])
    if len(kinds) == 2 and kinds[1] == {"type": "null"}:
        kind = {**{k: v for k, v in node.items() if k != "anyOf"}, **kinds[0]}
        return kind | ({"enum": [*kind["enum"], None]} if "enum" in kind else {"type": [kind["type"], "null"]})
    return node
