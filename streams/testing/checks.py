"""Checks of records that tests give to the driver."""

from collections.abc import Iterable
from typing import Any

from tidewheel.state_stores.layout.headers import as_headers
from tidewheel.streams.definitions.checks import check_series, is_series
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.processing.api.record import Headers


def rows(argument: object, call: str, *columns: str) -> Iterable[tuple[Any, ...]]:
    """Yield rows with one value per column; raise `StreamsError` for others.

    >>> list(rows([("a", 1), "b"], "pipe_key_values", "key", "value"))
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.StreamsError: pipe_key_values: item 1 is of type str; give (key, value)
    """
    row_form = f"({', '.join(columns)})"
    for index, row in enumerate(check_series(argument, row_form, call, error=StreamsError)):
        values = tuple(row) if is_series(row) else ()
        if len(values) != len(columns):
            raise StreamsError(
                f"{call}: item {index} is of type {type(row).__name__}; give {row_form}"
            )
        yield values


def checked_headers(headers: object) -> Headers:
    """Return headers as a tuple; raise `StreamsError` for headers that Kafka rejects."""
    try:
        return as_headers(headers)
    except TypeError as error:
        raise StreamsError(str(error)) from None
