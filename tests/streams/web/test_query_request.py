"""Parameters of queries."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.damage import NOISE
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.segments import TIME_MAX
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.web.query_request import COMMON, SHAPES, Limits, parse_request
from tidewheel.streams.web.query_text import BadQueryError

_NAMES = sorted({*COMMON, "reverse", "key", "from", "to", "start", "as_of", "prefix", "from_key"})


@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(sorted(StoreKind)),
    st.dictionaries(
        st.sampled_from(_NAMES) | st.text(max_size=5),
        st.sampled_from(["", "0", "1", "true", "-1", "1,2", "a-0:7", "2026-01-31", "9" * 40])
        | st.text(max_size=20)
        | NOISE.map(lambda data: data.decode("latin-1")),
    ),
)
def test_any_parameters_are_a_query_or_refused(
    kind: str, store: StoreKind, parameters: dict[str, str]
) -> None:
    limits = Limits()
    with contextlib.suppress(BadQueryError):
        request = parse_request("rows", kind, parameters, limits, 5_000)
        assert 1 <= request.rows_max <= limits.rows
        assert request.left_s <= limits.timeout_ms / 1000
        shape = request.shape_for(store)
        assert store in shape.kinds
        assert all(0 <= time <= TIME_MAX for time in request.times(shape).values())


def test_a_query_may_ask_for_less_than_the_limits_and_not_for_more() -> None:
    less = parse_request("rows", "range", {"limit": "5", "timeout_ms": "10"}, Limits(), 5_000)
    assert less.rows_max == 5
    assert less.left_s <= 0.01
    for parameters in ({"limit": "8"}, {"limit": "9" * 20}, {"timeout_ms": "60001"}):
        with pytest.raises(BadQueryError, match="from 1 to"):
            parse_request("rows", "range", parameters, Limits(rows=7), 5_000)
    assert parse_request("rows", "range", {}, Limits(timeout_ms=10), 5_000).left_s <= 0.01


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": "\u0661"},
        {"limit": "+1"},
        {"partitions": "\u0661"},
        {"partitions": "1,1"},
        {"partitions": "1/"},
        {"partitions": "1/0of3"},
        {"partitions": "1/0of1"},
        {"partitions": "/0of2"},
        {"partitions": "1/0of2,1/0of2"},
        {"min_position": ""},
        {"min_position": "a-\u0661:1"},
        {"min_position": "a-0:1,a-0:2"},
        {"max_lag": "5"},
        {"max_lag": "5", "stale": "false"},
    ],
)
def test_numbers_are_ascii_and_nothing_is_given_twice_or_in_vain(
    parameters: dict[str, str],
) -> None:
    with pytest.raises(BadQueryError):
        parse_request("rows", "range", parameters, Limits(), 5_000)


def test_a_position_names_partitions_of_topics_with_dashes() -> None:
    request = parse_request("rows", "get", {"min_position": "my-topic-3:17,b-0:0"}, Limits(), 1)
    assert request.min_position == {TopicPartition("my-topic", 3): 17, TopicPartition("b", 0): 0}


def test_every_kind_of_store_has_a_query_and_each_shape_is_reached() -> None:
    for kind in set(StoreKind) - {StoreKind.CUSTOM}:
        assert [
            name for name, shapes in SHAPES.items() if any(kind in shape.kinds for shape in shapes)
        ]
    with pytest.raises(BadQueryError, match="use"):
        parse_request("rows", "windows", {}, Limits(), 1).shape_for(StoreKind.KEY_VALUE)
