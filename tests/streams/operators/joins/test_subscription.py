"""Foreign-key messages: bytes equal to Kafka Streams', all other bytes rejected."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import SerializationError
from tidewheel.state_stores.layout.key_schema import prefix_end
from tidewheel.streams.operators.joins.subscription import (
    RESPONSES,
    SUBSCRIPTIONS,
    Instruction,
    Response,
    Subscription,
    combined_keys,
    key_prefix,
    to_primary_partition,
)

HASH = bytes(range(16))
HASHES = st.none() | st.binary(min_size=16, max_size=16)
SUBSCRIPTION = st.builds(
    Subscription,
    hash=HASHES,
    instruction=st.sampled_from(Instruction),
    primary_key=st.binary(max_size=8),
    primary_partition=st.none() | st.integers(0, 2**31 - 1),
)
RESPONSE = st.builds(
    Response,
    hash=HASHES,
    foreign_value=st.none() | st.binary(max_size=8),
    primary_partition=st.none(),
)


def test_a_subscription_is_laid_out_as_in_kafka_streams() -> None:
    wanted = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE
    data = SUBSCRIPTIONS.serialize("t", Subscription(HASH, wanted, b"pk", 258))
    assert data == b"\x01\x03" + HASH + b"pk" + b"\x00\x00\x01\x02"
    forget = Instruction.DELETE_KEY_NO_PROPAGATE
    assert (
        SUBSCRIPTIONS.serialize("t", Subscription(None, forget, b"pk", 0)) == b"\x81\x00pk\0\0\0\0"
    )


def test_a_subscription_of_version_0_has_no_partition() -> None:
    """Written by Kafka Streams before 3.3; the response's key decides the partition."""
    old = SUBSCRIPTIONS.deserialize("t", b"\x00\x02" + HASH + b"pk")
    wanted = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
    assert old == Subscription(HASH, wanted, b"pk", None)
    assert to_primary_partition("t", "k", Response(None, None, old.primary_partition), 3) is None
    assert to_primary_partition("t", "k", Response(None, None, 2), 3) == 2


def test_a_batch_of_responses_has_the_partitions_of_single_responses() -> None:
    of_2, of_0, of_none, of_9 = (Response(None, None, each) for each in (2, 0, None, 9))
    assert to_primary_partition.for_all([b"k", None], [of_2, of_0], 3) == [2, 0]
    assert to_primary_partition.for_all([b"k", b"k"], [of_2, of_none], 3) is None
    assert to_primary_partition.for_all([b"k", b"k"], [of_2, of_9], 3) is None


def test_a_response_is_laid_out_as_in_kafka_streams() -> None:
    assert RESPONSES.serialize("t", Response(HASH, b"value", 3)) == b"\x00" + HASH + b"value"
    assert RESPONSES.serialize("t", Response(None, None, 3)) == b"\x80"


def test_an_empty_value_is_not_a_missing_one() -> None:
    """Kafka Streams writes both alike; version 1 distinguishes them."""
    empty = RESPONSES.serialize("t", Response(HASH, b""))
    assert empty == b"\x01" + HASH
    assert RESPONSES.deserialize("t", empty or b"").foreign_value == b""
    assert RESPONSES.deserialize("t", b"\x00" + HASH).foreign_value is None


@given(SUBSCRIPTION, RESPONSE)
def test_messages_survive_their_serdes(subscription: Subscription, response: Response) -> None:
    written = SUBSCRIPTIONS.serialize("t", subscription)
    assert SUBSCRIPTIONS.deserialize("t", written or b"") == subscription
    assert RESPONSES.deserialize("t", RESPONSES.serialize("t", response) or b"") == response


USUAL_SUBSCRIPTION = st.builds(
    Subscription,
    hash=st.binary(min_size=16, max_size=16),
    instruction=st.sampled_from(Instruction),
    primary_key=st.binary(max_size=8),
    primary_partition=st.integers(0, 2**31 - 1),
)
USUAL_RESPONSE = st.builds(
    Response,
    hash=st.binary(min_size=16, max_size=16),
    foreign_value=st.binary(min_size=1, max_size=8),
    primary_partition=st.none(),
)


@given(
    st.lists(USUAL_SUBSCRIPTION) | st.lists(SUBSCRIPTION | USUAL_SUBSCRIPTION),
    st.lists(USUAL_RESPONSE) | st.lists(RESPONSE | USUAL_RESPONSE),
)
def test_batches_of_messages_are_written_and_read_as_each_of_them(
    subscriptions: list[Subscription], responses: list[Response]
) -> None:
    written = SUBSCRIPTIONS.serialize_batch("t", subscriptions)
    assert written == [SUBSCRIPTIONS.serialize("t", each) for each in subscriptions]
    data = [each or b"" for each in written]
    assert SUBSCRIPTIONS.deserialize_batch("t", data) == subscriptions
    answers = RESPONSES.serialize_batch("t", responses)
    assert answers == [RESPONSES.serialize("t", each) for each in responses]
    assert RESPONSES.deserialize_batch("t", [each or b"" for each in answers]) == responses


@pytest.mark.parametrize(
    ("serde", "data", "reason"),
    [
        (
            SUBSCRIPTIONS,
            b"\x02\x00" + HASH,
            "version 2 of a subscription, this program knows 0 to 1",
        ),
        (SUBSCRIPTIONS, b"\x01\x00" + HASH, "the primary partition is missing"),
        (SUBSCRIPTIONS, b"\x01\x00abc", "the hash is cut off"),
        (SUBSCRIPTIONS, b"\x81\x07pk\0\0\0\0", "7 is not a valid Instruction"),
        (SUBSCRIPTIONS, b"", "0 bytes"),
        (RESPONSES, b"\x05" + HASH, "version 5 of a response, this program knows 0 to 1"),
        (RESPONSES, b"\x00abc", "the hash is cut off"),
    ],
)
def test_bytes_of_no_message_are_refused(serde: Any, data: bytes, reason: str) -> None:
    with pytest.raises(SerializationError, match=re.escape(reason)):
        serde.deserialize("app-topic", data)
    message: Any = Response(HASH, b"value")
    if serde is SUBSCRIPTIONS:
        message = Subscription(HASH, Instruction.DELETE_KEY_AND_PROPAGATE, b"pk", 1)
    usual = serde.serialize("t", message)
    with pytest.raises(SerializationError, match=re.escape(reason)):
        serde.deserialize_batch("app-topic", [usual, data])


@given(st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4))
def test_a_prefix_finds_the_subscriptions_of_one_foreign_key(
    key: bytes, other: bytes, primary_key: bytes
) -> None:
    lower, upper = key_prefix(key), prefix_end(key_prefix(key))
    (stored,) = combined_keys([other], [primary_key])
    assert (lower <= stored and (upper is None or stored < upper)) is (key == other)
    assert combined_keys([key, b""], [primary_key, b""]) == [
        len(key).to_bytes(4, "big") + key + primary_key,
        bytes(4),
    ]
