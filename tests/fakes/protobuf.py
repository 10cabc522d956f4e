"""Protobuf classes created at run time, as protoc would generate them."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are a package of their own
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

LONG = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING

Fields = Sequence[tuple[str, "descriptor_pb2.FieldDescriptorProto.Type"]]


def message_types(file: str, **fields: Fields) -> dict[str, type[Any]]:
    """Return the classes of one `.proto` file by name, each with a nested class `Inner`.

    Each call has its own pool, so two versions of one file can exist.
    """
    proto = descriptor_pb2.FileDescriptorProto(name=file, package="shop", syntax="proto3")
    for name, columns in fields.items():
        message = proto.message_type.add(name=name)
        for number, (column, kind) in enumerate(columns, start=1):
            label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            message.field.add(name=column, number=number, type=kind, label=label)
        message.nested_type.add(name="Inner")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    made: dict[str, type[Any]] = {}
    for name in fields:
        descriptor = pool.FindMessageTypeByName(f"shop.{name}")
        made[name] = message_factory.GetMessageClass(descriptor)
        inner = descriptor.nested_types_by_name["Inner"]
        made[f"{name}.Inner"] = message_factory.GetMessageClass(inner)
    return made
