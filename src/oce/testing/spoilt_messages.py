"""Every small way to spoil a protobuf message: what a broken or hostile peer may put where a sane value stood.

Pure and deterministic: `spoilt(message)` yields a description and a copy for each field that is set, in the order of the fields. A text
becomes hostile or empty, a number extreme, an enum a value that nobody knows, a message or list is taken away, a list's last item
stands twice, a map gains an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

HOSTILE: Final = "\x1b]0;<script>\r\nX: ../../\u202e%s{{config.x}}"
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (2**32 - 1,),
    FieldDescriptor.CPPTYPE_UINT64: (2**64 - 1,),
    FieldDescriptor.CPPTYPE_ENUM: (0, 2**31 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("inf")),
    FieldDescriptor.CPPTYPE_FLOAT: (float("nan"), float("inf")),
}


def spoilt(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield (what was spoilt, copy) for each field that is set, also inside messages."""
    for path in _paths(message):
        for name, change in _changes(_at(message, path[:-1]), path[-1]):
            copy = type(message)()
            copy.CopyFrom(message)
            change(_at(copy, path[:-1]))
            yield f"{'.'.join(str(step) for step in path)} {name}", copy


def _paths(message: Message) -> Iterator[tuple[Any, ...]]:
    for field, value in message.ListFields():
        yield (field.name,)
        if field.type != FieldDescriptor.TYPE_MESSAGE or _is_map(field):
            continue
        inside = enumerate(value) if field.is_repeated else ((None, value),)
        for number, item in list(inside)[:2]:
            step = (field.name,) if number is None else (field.name, number)
            yield from ((*step, *rest) for rest in _paths(item))


def _at(message: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 # generated messages
    for step in path:
        message = message[step] if isinstance(step, int) else getattr(message, step)
    return message


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _changes(owner: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 # as above
    field = owner.DESCRIPTOR.fields_by_name[name]
    yield "taken away", lambda message: message.ClearField(name)
    if _is_map(field):
        if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
            yield (
                "with a stranger",
                lambda message: getattr(message, name).update({HOSTILE: HOSTILE}),
            )
    elif field.is_repeated:
        yield "doubled", lambda message: getattr(message, name).append(getattr(message, name)[-1])
    elif (
        field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        and field.type != FieldDescriptor.TYPE_BYTES
    ):
        yield "hostile", lambda message: setattr(message, name, HOSTILE)
    else:
        for value in _INTEGERS.get(field.cpp_type, ()):
            yield f"{value}", lambda message, value=value: setattr(message, name, value)
