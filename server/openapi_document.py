"""The OpenAPI 3.1 document of a server: its routes, what they take, and what they answer.

Of the built-in routes ``openapi_operations`` says what they do. A plugin's route is listed with
what it says of itself, and nothing is made up for it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from .openai_request import UNUSED_HEADER
from .openapi_operations import OPERATIONS, STATUSES, Operation
from .owned_route import OwnedRoute, Part
from .route_access import CoreRoute, needs_of
from .route_paths import keys_of
from .wire_json import UNUSED_FIELDS
from .wire_replies import Error

OPENAPI_VERSION = "3.1.0"
JSON = "application/json"
SCHEMAS = "#/components/schemas/"
_CONVERTER = re.compile(r"{(\w+)(?::\w+)?}")
_DESCRIPTION = (
    "`null` is the same as leaving a field out. Streams end with `data: [DONE]`, or with an event "
    "that has an `error`; `x-hookserve-event` is the type of their other events."
)

Json = dict[str, Any]


def openapi_document(
    routes: Sequence[BaseRoute],
    models: Sequence[str],
    *,
    root_path: str = "",
    is_closed: bool = False,
) -> Json:
    """
    Args:
        routes: those that are served, as ``EndpointSet`` arranges them.
        models: the names under which the model is served.
        root_path: under which a proxy publishes the server.
        is_closed: whether requests must say who sends them.
    """
    paths: dict[str, Json] = {}
    used: list[Operation] = []
    others: list[str] = []
    for served in routes:
        owner = served.claim.owner if isinstance(served, OwnedRoute) else None
        for route, needs in _parts(served):
            if not getattr(route, "include_in_schema", True):
                continue
            if not isinstance(route, Route):
                others += map(str, keys_of(route))
                continue
            path = _CONVERTER.sub(r"{\1}", route.path)
            for method in dict.fromkeys(key.method for key in keys_of(route)):
                item = _parameters(path)
                if owner is not None:
                    item |= _said_by(route, method, owner)
                else:
                    used.append(OPERATIONS[method, path])
                    item |= _operation(used[-1])
                item |= _access(needs, is_closed)
                paths.setdefault(path, {}).setdefault(method.lower(), item)
    document: Json = {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "hookserve",
            "version": version("hookserve"),
            "description": _DESCRIPTION,
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": _components(used, models, is_closed),
    }
    return document | ({"x-hookserve-other-routes": others} if others else {})


def _parts(served: BaseRoute) -> Sequence[Part]:
    """The plain routes that one of the list consists of."""
    if isinstance(served, OwnedRoute):
        return served.parts
    route = served.route if isinstance(served, CoreRoute) else served
    return (Part(route, needs_of(route)),)


# -- operations ---------------------------------------------------------------------


def _parameters(path: str) -> Json:
    names = _CONVERTER.findall(path)
    if not names:
        return {}
    schema = {"type": "string"}
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ]
    }


def _access(needs: Iterable[str], is_closed: bool) -> Json:
    scopes = sorted(needs)
    if not scopes:
        return {"security": []}
    return {"x-hookserve-scopes": scopes} | ({"security": [{"key": []}]} if is_closed else {})


def _said_by(route: Route, method: str, owner: str) -> Json:
    """Summary and description of a plugin's route: its own attributes, where its framework has
    them, or the text in front of its function."""
    handler = getattr(route.endpoint, method.lower(), route.endpoint)
    is_its_own = inspect.isroutine(handler)
    first, _, rest = (inspect.getdoc(handler) or "").partition("\n") if is_its_own else ("", "", "")
    said = {"summary": first.strip(), "description": rest.strip()}
    for name in said:
        value = getattr(route, name, None)
        if isinstance(value, str) and value:
            said[name] = value
    return {name: text for name, text in said.items() if text} | {
        "tags": ["plugins"],
        "x-hookserve-plugin": owner,
    }


def _operation(operation: Operation) -> Json:
    item: Json = {"summary": operation.summary, "tags": [operation.tag]}
    if operation.decoder is not None:
        schema = _ref(operation.decoder.struct)
        item["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    failures = {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in operation.failures
    }
    item["responses"] = {"200": _success(operation), **failures}
    return item


def _success(operation: Operation) -> Json:
    reply = operation.reply
    media = reply if isinstance(reply, str) else JSON
    schema = {} if isinstance(reply, str) else {"schema": _ref(reply)}
    found: Json = {"description": "as asked for", "content": {media: schema}}
    if operation.event is not None:
        found["content"]["text/event-stream"] = {
            "schema": {"type": "string"},
            "x-hookserve-event": _ref(operation.event),
        }
    if operation.decoder is not None:
        about = "the fields of the request that have no effect"
        found["headers"] = {UNUSED_HEADER: {"description": about, "schema": {"type": "string"}}}
    return found


# -- components ---------------------------------------------------------------------


def _ref(struct: type[msgspec.Struct]) -> Json:
    return {"$ref": SCHEMAS + struct.__name__}


def _components(operations: Sequence[Operation], models: Sequence[str], is_closed: bool) -> Json:
    structs: list[type[msgspec.Struct]] = [Error]
    for operation in operations:
        decoder = operation.decoder
        found = (operation.reply, operation.event, decoder and decoder.struct)
        structs += [each for each in found if isinstance(each, type)]
    _, schemas = msgspec.json.schema_components(structs, ref_template=SCHEMAS + "{name}")
    schemas = {name: _plain(schema) for name, schema in schemas.items()}
    for operation in operations:
        if operation.decoder is not None:
            body = schemas[operation.decoder.struct.__name__]
            _close(body, operation)
            body["properties"]["model"] = {"enum": [None, *models]}
    components: Json = {
        "schemas": dict(sorted(schemas.items())),
        "responses": {str(status): _failure(status) for status in STATUSES},
    }
    if is_closed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return components


def _failure(status: int) -> Json:
    return {"description": STATUSES[status], "content": {JSON: {"schema": _ref(Error)}}}


def _plain(value: Any) -> Any:
    """A schema as every reader of JSON schemas understands it: ``\\Z`` is Python's own, ``null``
    for a field that is left out says nothing, and of a docstring the first paragraph is meant."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: _plain(each)
        for name, each in value.items()
        if not (name == "default" and each is None)
    }
    if isinstance(pattern := kept.get("pattern"), str):
        kept["pattern"] = pattern.replace(r"\Z", "$")
    if isinstance(about := kept.get("description"), str):
        kept["description"] = about.partition("\n\n")[0].replace("``", "`")
    return kept


def _close(schema: Json, operation: Operation) -> None:
    """Say of a body which other fields it may have, and which it must have."""
    assert operation.decoder is not None
    fields = schema["properties"]
    for name in sorted(UNUSED_FIELDS):
        fields[name] = {"description": f"Without effect here; `{UNUSED_HEADER}` names it."}
    for name, values in operation.decoder.not_built.items():
        about = "Not supported yet: only what changes nothing is accepted."
        fields[name] = {"description": about, "enum": [None, *values]}
    for name in (*operation.required, *operation.one_of):
        fields[name] = _not_null(fields[name])
    if operation.required:
        schema["required"] = list(operation.required)
    if operation.one_of:
        schema["oneOf"] = [{"required": [name]} for name in operation.one_of]
    schema["additionalProperties"] = False


def _not_null(field: Json) -> Json:
    kinds = [each for each in field["anyOf"] if each != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {**field, "anyOf": kinds}
