"""What tests give to topics of the driver, checked."""

from collections.abc import Iterable
from typing import Any, cast

from streams.arguments import check_series, is_series
from streams.errors import StreamsError
from tasks.processing.record import Headers


def rows(given: object, call: str, *columns: str) -> Iterable[tuple[Any, ...]]:
    """Yield rows of as many values as there are columns; raises `StreamsError` for anything else.

    >>> list(rows([("a", 1), "b"], "pipe_key_values", "key", "value"))
    Traceback (most recent call last):
    ...
    state_stores.errors.StreamsError: pipe_key_values: item 1 is of type str; give (key, value)
    """
    wanted = f"({', '.join(columns)})"
    for index, row in enumerate(check_series(given, wanted, call, error=StreamsError)):
        values = tuple(row) if is_series(row) else ()
        if len(values) != len(columns):
            raise StreamsError(
                f"{call}: item {index} is of type {type(row).__name__}; give {wanted}"
            )
        yield values


def checked_headers(headers: object) -> Headers:
    """Return headers as a tuple; raises `StreamsError` for a dict, or for values that are text."""
    if isinstance(headers, tuple | list) and all(
        map(_is_header, cast("Iterable[object]", headers))
    ):
        return tuple(cast("Headers", headers))
    raise StreamsError(
        f"headers={headers!r}: give a sequence of (name, value) with values of bytes or None, as (('trace', b'1'),)"
    )


def _is_header(header: object) -> bool:
    match header:
        case (str(), bytes() | None):
            return isinstance(header, tuple)
        case _:
            return False
