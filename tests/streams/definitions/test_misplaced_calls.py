"""Calls on the wrong kind of stream or table."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import SessionWindows, StreamsBuilder, TimeWindows


def stream() -> Any:
    return StreamsBuilder().stream("in", key_serde=str, value_serde=str)


def grouped() -> Any:
    return stream().group_by_key()


def folded(key: Any, value: Any, total: Any) -> Any:
    return total


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (lambda: stream().to_table().to("out"), ".to_stream().to(…)"),
        (lambda: stream().to_table().count(), ".group_by(…).count(…)"),
        (lambda: stream().to_table().windowed_by(5), ".to_stream().group_by_key().windowed_by(…)"),
        (lambda: stream().count(), ".group_by_key().count(…)"),
        (lambda: stream().windowed_by(TimeWindows(5)), ".group_by_key().windowed_by(…)"),
        (lambda: stream().suppress(None), ".to_table().suppress(…)"),
        (lambda: stream().to_stream(), "this is a stream already"),
        (lambda: grouped().to("out"), ".count().to_stream().to(…)"),
        (lambda: grouped().map_values(len), ".count().map_values(…)"),
        (lambda: grouped().windowed_by(TimeWindows(5)).to("out"), ".count().to_stream().to(…)"),
        (lambda: grouped().windowed_by(SessionWindows(5)).to_stream(), ".count().to_stream(…)"),
        (lambda: grouped().cogroup(folded).to_stream(), ".aggregate(…).to_stream(…)"),
        (
            lambda: grouped().cogroup(folded).windowed_by(TimeWindows(5)).to("out"),
            ".aggregate(…).to_stream().to(…)",
        ),
        (lambda: stream().to_table().group_by(lambda k, v: (k, v)).to("out"), ".count().to_str"),
    ],
)  # fmt: skip
def test_the_error_names_the_calls_in_between(call: Callable[[], Any], way: str) -> None:
    with pytest.raises(AttributeError) as caught:
        call()
    assert f"; write {way}" in str(caught.value) or f"; write the next call without it: {way}" in str(caught.value)  # fmt: skip


def test_other_missing_attributes_are_plain_errors() -> None:
    for name in ("map_value", "_repr_html_"):
        with pytest.raises(AttributeError, match=rf"^'KStream' object has no attribute '{name}'$"):
            getattr(stream(), name)
    assert not hasattr(stream(), "nothing")
    assert repr(copy.copy(stream())) == repr(stream())
