"""Foreign-key subscriptions and responses (KIP-213): messages and their bytes.

The left side **subscribes** each row to a right row; the right side **responds** with it. Formats
are Kafka Streams' (SubscriptionWrapperSerde, SubscriptionResponseWrapperSerde, CombinedKeySchema):

subscription   version and "no hash" bit (1), instruction (1), hash (16 or 0), primary key,
               primary partition (4)
response       version and "no hash" bit (1), hash (16 or 0), right value or nothing
store key      length of the foreign key (4), foreign key, primary key

Version 1 of responses is Tidewheel's own, see `_EMPTY_VALUE_VERSION`.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

from tidewheel.streams.serdes import Serde
from tidewheel.tasks.processing.engine.record_batch import has_none

M = TypeVar("M")

_HASH_BYTES = 16
_LENGTH_BYTES = 4
_NO_HASH = 0x80
_VERSION_BITS = 0x7F
#: In version 1 of Kafka Streams' format, subscriptions end with the left row's partition.
_SUBSCRIPTION_VERSION = 1
#: Versions of responses: Kafka Streams' 0, and Tidewheel's 1 for a right row of zero bytes (empty
#: text). In version 0 that row seems missing, and an inner join deletes its result.
_RESPONSE_VERSION, _EMPTY_VALUE_VERSION = 0, 1


class Instruction(IntEnum):
    #: Delete the subscription without a response: the row now subscribes to another key.
    DELETE_KEY_NO_PROPAGATE = 0
    #: Delete the subscription and respond without a value.
    DELETE_KEY_AND_PROPAGATE = 1
    #: Store the subscription; respond, without a value if the right row is missing.
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    #: Store the subscription; respond only if the right row exists.
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3

    @property
    def deletes(self) -> bool:
        return self <= Instruction.DELETE_KEY_AND_PROPAGATE


_INSTRUCTIONS = tuple(Instruction)


class Subscription(NamedTuple):
    """A subscription of a left row.

    `hash` is that of the left value, None for a deleted row. `primary_partition` receives the
    response; older versions wrote None, then the response's key decides.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: bytes
    primary_partition: int | None


class Response(NamedTuple):
    """The right row, None if missing, with the subscription's hash."""

    hash: bytes | None
    foreign_value: bytes | None
    #: Target of the response; not part of its bytes.
    primary_partition: int | None = None


#: `tuple.__new__` by `map` avoids a Python call per message.
_new_tuple: Callable[..., Any] = cast("Any", tuple).__new__
_new_subscription: Callable[[tuple[Any, ...]], Subscription] = partial(_new_tuple, Subscription)
_new_response: Callable[[tuple[Any, ...]], Response] = partial(_new_tuple, Response)


def subscriptions_of(
    hashes: Iterable[bytes | None],
    instructions: Iterable[Instruction],
    primary_keys: Iterable[bytes],
    partitions: Iterable[int | None],
) -> list[Subscription]:
    """Return subscriptions, given as columns.

    >>> subscriptions_of([None], [Instruction.DELETE_KEY_AND_PROPAGATE], [b"pk"], [2])[0].primary_key
    b'pk'
    """
    return list(map(_new_subscription, zip(hashes, instructions, primary_keys, partitions)))  # noqa: B905 - some inputs are endless


def responses_of(
    hashes: Iterable[bytes | None],
    values: Iterable[bytes | None],
    partitions: Iterable[int | None],
) -> list[Response]:
    """Return responses, given as columns.

    >>> responses_of([None], [b"row"], [2])
    [Response(hash=None, foreign_value=b'row', primary_partition=2)]
    """
    return list(map(_new_response, zip(hashes, values, partitions, strict=True)))


class MessageSerde(Serde[M]):
    def __init__(
        self,
        name: str,
        encode: Callable[[M], bytes],
        decode: Callable[[bytes], M],
        encode_alike: Callable[[Sequence[M]], list[bytes | None] | None],
        decode_alike: Callable[[Sequence[bytes]], list[M] | None],
    ) -> None:
        super().__init__(name=name)
        self._encode = encode
        self._decode = decode
        #: Faster for a list. They return None if a message lacks a hash, value or partition; then
        #: messages are converted singly.
        self._encode_alike = encode_alike
        self._decode_alike = decode_alike

    def serialize(self, topic: str, value: M, /) -> bytes | None:  # noqa: ARG002 - all topics are alike
        return self._encode(value)

    def serialize_batch(self, topic: str, values: Sequence[M], /) -> list[bytes | None]:  # noqa: ARG002 - as above
        encoded = self._encode_alike(values) if values else None
        return list(map(self._encode, values)) if encoded is None else encoded

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[M]:
        decoded = self._decode_alike(data) if data else None
        if decoded is not None:
            return decoded
        try:
            return list(map(self._decode, data))
        except (ValueError, IndexError):
            return super().deserialize_batch(topic, data)

    def deserialize(self, topic: str, data: bytes, /) -> M:
        try:
            return self._decode(data)
        except (ValueError, IndexError) as error:
            raise self.failed("deserialise", topic, f"{len(data)} bytes, {error}") from error


def encode_subscription(subscription: Subscription) -> bytes:
    r"""Return the bytes of a subscription.

    >>> encode_subscription(Subscription(None, Instruction.DELETE_KEY_AND_PROPAGATE, b"pk", 2))
    b'\x81\x01pk\x00\x00\x00\x02'
    """
    row_hash, instruction, primary_key, partition = subscription
    version = 0 if partition is None else _SUBSCRIPTION_VERSION
    head = bytes((version | (_NO_HASH if row_hash is None else 0), instruction))
    tail = b"" if partition is None else partition.to_bytes(_LENGTH_BYTES, "big", signed=True)
    return head + (row_hash or b"") + primary_key + tail


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription; raise `ValueError` for an unknown version."""
    version, row_hash, start = _head(data, 2)
    _check_version("subscription", version, _SUBSCRIPTION_VERSION)
    number = data[1]
    # Faster than `Instruction(number)`.
    instruction = _INSTRUCTIONS[number] if number < len(_INSTRUCTIONS) else Instruction(number)
    if version == 0:
        return Subscription(row_hash, instruction, data[start:], None)
    end = len(data) - _LENGTH_BYTES
    if end < start:
        raise ValueError("the primary partition is missing")
    partition = int.from_bytes(data[end:], "big", signed=True)
    return Subscription(row_hash, instruction, data[start:end], partition)


def encode_response(response: Response) -> bytes:
    r"""Return the bytes of a response.

    >>> encode_response(Response(None, b"value"))
    b'\x80value'
    """
    row_hash, value, _ = response
    version = _EMPTY_VALUE_VERSION if value == b"" else _RESPONSE_VERSION
    head = version | (_NO_HASH if row_hash is None else 0)
    return bytes((head,)) + (row_hash or b"") + (value or b"")


def decode_response(data: bytes) -> Response:
    """Decode a response; raise `ValueError` for an unknown version."""
    version, row_hash, start = _head(data, 1)
    _check_version("response", version, _EMPTY_VALUE_VERSION)
    value = data[start:]
    return Response(row_hash, value if value or version == _EMPTY_VALUE_VERSION else None)


def _encode_subscriptions(subscriptions: Sequence[Subscription]) -> list[bytes | None] | None:
    hashes: tuple[bytes, ...]
    instructions: tuple[Instruction, ...]
    partitions: tuple[int, ...]
    hashes, instructions, primary_keys, partitions = zip(*subscriptions, strict=True)
    if has_none(hashes) or has_none(partitions):
        return None
    heads = [bytes((_SUBSCRIPTION_VERSION, instructions[0]))] * len(subscriptions)
    if instructions.count(instructions[0]) < len(instructions):
        heads = [bytes((_SUBSCRIPTION_VERSION, number)) for number in instructions]
    tails = {
        number: number.to_bytes(_LENGTH_BYTES, "big", signed=True) for number in set(partitions)
    }
    return [
        head + row_hash + primary_key + tails[partition]
        for head, row_hash, primary_key, partition in zip(
            heads, hashes, primary_keys, partitions, strict=True
        )
    ]


def _decode_subscriptions(data: Sequence[bytes]) -> list[Subscription] | None:
    start = 2 + _HASH_BYTES
    if min(map(len, data)) < start + _LENGTH_BYTES:
        return None
    heads = list(map(itemgetter(slice(2)), data))
    of_head = {
        bytes((_SUBSCRIPTION_VERSION, number)): instruction
        for number, instruction in enumerate(_INSTRUCTIONS)
    }
    if not of_head.keys() >= set(heads):
        return None
    tails = list(map(itemgetter(slice(-_LENGTH_BYTES, None)), data))
    partitions = {number: int.from_bytes(number, "big", signed=True) for number in set(tails)}
    columns = zip(
        map(itemgetter(slice(2, start)), data),
        map(of_head.__getitem__, heads),
        map(itemgetter(slice(start, -_LENGTH_BYTES)), data),
        map(partitions.__getitem__, tails),
        strict=True,
    )
    return list(map(_new_subscription, columns))


def _encode_responses(responses: Sequence[Response]) -> list[bytes | None] | None:
    if not all(row_hash is not None and value for row_hash, value, _ in responses):
        return None
    head = bytes((_RESPONSE_VERSION,))
    return [head + row_hash + value for row_hash, value, _ in responses if row_hash and value]


def _decode_responses(data: Sequence[bytes]) -> list[Response] | None:
    start = 1 + _HASH_BYTES
    if min(map(len, data)) <= start or set(map(itemgetter(0), data)) != {_RESPONSE_VERSION}:
        return None
    hashes = map(itemgetter(slice(1, start)), data)
    values = map(itemgetter(slice(start, None)), data)
    return list(map(_new_response, zip(hashes, values, repeat(None, len(data)), strict=True)))


def _head(data: bytes, start: int) -> tuple[int, bytes | None, int]:
    version = data[0] & _VERSION_BITS
    if data[0] & _NO_HASH:
        return version, None, start
    row_hash = data[start : start + _HASH_BYTES]
    if len(row_hash) < _HASH_BYTES:
        raise ValueError("the hash is cut off")
    return version, row_hash, start + _HASH_BYTES


def _check_version(what: str, version: int, newest: int) -> None:
    if version > newest:
        raise ValueError(
            f"version {version} of a {what}, this program knows 0 to {newest}: upgrade all workers"
        )


SUBSCRIPTIONS: Serde[Subscription] = MessageSerde(
    "subscription",
    encode_subscription,
    decode_subscription,
    _encode_subscriptions,
    _decode_subscriptions,
)
RESPONSES: Serde[Response] = MessageSerde(
    "response", encode_response, decode_response, _encode_responses, _decode_responses
)


def key_prefix(foreign_key: bytes) -> bytes:
    r"""Return the store key prefix of all subscriptions to one foreign key.

    >>> key_prefix(b"fk")
    b'\x00\x00\x00\x02fk'
    """
    return len(foreign_key).to_bytes(_LENGTH_BYTES, "big") + foreign_key


def combined_keys(foreign_keys: Sequence[bytes], primary_keys: Iterable[bytes]) -> list[bytes]:
    r"""Return the store keys of many subscriptions.

    >>> combined_keys([b"fk"], [b"pk"])
    [b'\x00\x00\x00\x02fkpk']
    """
    lengths = list(map(len, foreign_keys))
    prefixes = {length: length.to_bytes(_LENGTH_BYTES, "big") for length in set(lengths)}
    return [
        prefixes[length] + foreign_key + primary_key
        for length, foreign_key, primary_key in zip(
            lengths, foreign_keys, primary_keys, strict=True
        )
    ]


class PrimaryPartitioner:
    """Partitioner of responses: the partition of the left row."""

    def __call__(self, topic: str, key: Any, value: Response, partitions: int) -> int | None:  # noqa: ARG002 - a partitioner's signature
        return value.primary_partition

    def for_all(
        self,
        keys: Sequence[bytes | None],  # noqa: ARG002 - a batch partitioner's signature
        values: Sequence[Response],
        partitions: int,
    ) -> list[int] | None:
        """Return all partitions; None if some response has no valid one."""
        chosen = [value.primary_partition for value in values]
        valid = range(partitions)
        return (
            cast("list[int]", chosen)
            if all(partition in valid for partition in set(chosen))
            else None
        )


to_primary_partition = PrimaryPartitioner()
