"""The one place where the generated `openshell` stubs enter sandboxd (they live under a private path of that wheel).

They carry no usable types, so a message is `Proto` everywhere; field names are those of the wire. Never import the wheel's
modules elsewhere: a move of theirs costs one line here.

The wheel's top package imports its whole client (an HTTP library, a terminal library) for which a gateway has no use: half of the
start-up time and a fifth of the memory. So while the stubs are imported an empty package of the same name and place stands for
it; afterwards the real one can be imported as ever and finds these very modules.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import timestamp_pb2
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _empty_package(name: str) -> Iterator[None]:
    """Let submodules of a package be imported without running its `__init__`; one that is loaded stays as it is."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:
        yield
        return
    package = ModuleType(name)
    package.__path__ = spec.submodule_search_locations or []
    sys.modules[name] = package
    try:
        yield
    finally:
        del sys.modules[name]


with _empty_package("openshell"):
    from openshell._proto import datamodel_pb2, openshell_pb2, options_pb2, sandbox_pb2

Proto: TypeAlias = Any

pb: Proto = openshell_pb2
policy_pb: Proto = sandbox_pb2
data_pb: Proto = datamodel_pb2
details_pb: Proto = error_details_pb2
status_pb: Proto = status_pb2
Timestamp: Proto = timestamp_pb2.Timestamp

SERVICE: Proto = openshell_pb2.DESCRIPTOR.services_by_name["OpenShell"]
SERVICE_NAME: str = SERVICE.full_name


def message_class(descriptor: Proto) -> Proto:
    """Return the class of a message descriptor."""
    return GetMessageClass(descriptor)


def authorization(method: Proto) -> Proto:
    """Return a method's `AuthorizationRule` option (auth_mode, workspace_role, global_role, scope)."""
    return method.GetOptions().Extensions[options_pb2.authorization]  # type: ignore[attr-defined,unused-ignore]


def unknown_field(message: Proto, where: str = "") -> str | None:
    """Return where a message, or one inside it, carries a field that these stubs do not know; None when clean."""
    unknown_fields: Proto = UnknownFieldSet(message)
    for unknown in unknown_fields:
        return f"{where or message.DESCRIPTOR.name}.#{unknown.field_number}"
    for name, inner in _inner(message):
        found = unknown_field(inner, f"{where}.{name}" if where else name)
        if found is not None:
            return found
    return None


def _inner(message: Proto) -> Iterator[tuple[str, Proto]]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                yield from ((f"{field.name}[{key}]", item) for key, item in value.items())
        elif field.is_repeated:
            yield from ((f"{field.name}[{index}]", item) for index, item in enumerate(value))
        else:
            yield field.name, value


def timestamp(seconds: float) -> Proto:
    """Return a Timestamp for seconds since the epoch."""
    whole = int(seconds)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1_000_000_000))
