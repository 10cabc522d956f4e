"""Check of the Protobuf message that wrote a record: its full name, by schema id and message index.

Two messages with the same field numbers can read each other's bytes, so only the name distinguishes
them.
"""

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tidewheel.streams.serdes.schema_port import CodecError

_ID_END: Final = 5
_GUID_END: Final = 17
_MORE: Final = 0x80

#: Comments and string literals of a `.proto` text, whose braces open no blocks.
_ASIDE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_PACKAGE: Final = re.compile(r"\bpackage\s+([\w.]+)\s*;")
_BLOCK: Final = re.compile(r"\bmessage\s+(\w+)\s*\{|\{|\}")


class ProtobufWriters:
    """Check that records contain the Protobuf message `full_name`.

    `schema_of` returns the schema text for a record's first bytes (magic byte and schema id).
    """

    def __init__(self, full_name: str, schema_of: Callable[[bytes], str]) -> None:
        self._full_name = full_name
        self._schema_of = schema_of
        self._good: set[bytes] = set()

    def check(self, data: bytes) -> None:
        start = _GUID_END if data[0] else _ID_END
        end, indexes = read_indexes(data, start)
        header = data[:end]
        if header in self._good:
            return
        name = message_name(self._schema_of(data[:start]), indexes)
        if name != self._full_name:
            raise CodecError(
                f"a {name} wrote them, and this serde reads {self._full_name}; give the serde of that message, or read "
                "the topic that has this one"
            )
        self._good.add(header)


def read_indexes(data: bytes, start: int) -> tuple[int, tuple[int, ...]]:
    r"""Return the start of the message's bytes, and the message's indexes in the schema.

    >>> read_indexes(b"\x00" * 6, 5), read_indexes(b"\x00\x00\x00\x00\x01\x04\x02\x00", 5)
    ((6, (0,)), (8, (1, 0)))
    """
    end, count = _varint(data, start)
    indexes: list[int] = []
    for _ in range(count):
        end, index = _varint(data, end)
        indexes.append(index)
    return end, tuple(indexes) or (0,)


def message_name(schema: str, indexes: Sequence[int]) -> str:
    """Return a message's full name; the schema is a `.proto` text or a base64 descriptor.

    >>> message_name("package shop; message Order { message Line {} } message Refund {}", (0, 0))
    'shop.Order.Line'
    """
    try:
        return _described_name(base64.b64decode(schema, validate=True), indexes)
    except ValueError:
        pass  # Not base64: a `.proto` text.
    text = _ASIDE.sub(" ", schema)
    package = _PACKAGE.search(text)
    names = [name for path, name in _messages(text) if path == tuple(indexes)]
    if not names:
        raise CodecError(f"their schema has no message {list(indexes)}")
    return f"{package[1]}.{names[0]}" if package else names[0]


def message_indexes(descriptor: Any) -> tuple[int, ...]:
    """Return a message's indexes in its file, as for `message_name`.

    >>> from google.protobuf.struct_pb2 import Struct, Value
    >>> message_indexes(Value.DESCRIPTOR), message_indexes(Struct.DESCRIPTOR.nested_types[0])
    ((1,), (0, 0))
    """
    outer = descriptor.containing_type
    siblings = (
        list(descriptor.file.message_types_by_name.values())
        if outer is None
        else outer.nested_types
    )
    index = [sibling.full_name for sibling in siblings].index(descriptor.full_name)
    return (index,) if outer is None else (*message_indexes(outer), index)


def _described_name(descriptor: bytes, indexes: Sequence[int]) -> str:
    from google.protobuf import descriptor_pb2  # type: ignore[import-untyped] # noqa: PLC0415 - needs the extra

    try:
        file: Any = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    except Exception as error:
        raise ValueError from error
    names, messages = ([file.package] if file.package else []), file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise CodecError(f"their schema has no message {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _messages(text: str) -> Iterator[tuple[tuple[int, ...], str]]:
    # Name and indexes of each open message block, None for other blocks; `counts` are the
    # messages found in each so far.
    open_blocks: list[tuple[str, tuple[int, ...]] | None] = []
    counts = [0]
    for match in _BLOCK.finditer(text):
        if match[0] == "}":
            if open_blocks:
                open_blocks.pop()
                counts.pop()
        elif match[1] is None:
            open_blocks.append(None)
            counts.append(0)
        else:
            outer = open_blocks[-1] if open_blocks else None
            prefix, place = ("", ()) if outer is None else (f"{outer[0]}.", outer[1])
            block = prefix + match[1], (*place, counts[-1])
            counts[-1] += 1
            yield block[1], block[0]
            open_blocks.append(block)
            counts.append(0)


def _varint(data: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(data[start : start + 5]):
        number |= (byte & ~_MORE) << (7 * shift)
        if byte < _MORE:
            return start + shift + 1, (number >> 1) ^ -(number & 1)
    raise CodecError("their message index has no end")
