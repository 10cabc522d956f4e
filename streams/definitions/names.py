"""Legal names of nodes, stores and topics, and suggestions for misspelled ones."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from tidewheel.state_stores.names import check_store_name, check_topic_name
from tidewheel.streams.definitions.checks import is_series
from tidewheel.streams.errors import TopologyError

#: Kafka's suffix of repartition topics.
REPARTITION_SUFFIX: Final = "-repartition"


def where(what: str, location: str) -> str:
    """Return an operator and the user's line for messages.

    >>> where("filter", "app.py:12")
    'filter (app.py:12)'
    """
    return f"{what} ({location})" if location else what


def check_name(name: object, what: str, context: str) -> str:
    """Return a legal name; raise `TopologyError` otherwise.

    Args:
        what: Kind of name ("topic", "store", "name"); stores have a stricter rule.
        context: Operator and line, see `where`.

    >>> check_name("word-counts", "store", "count (app.py:3)")
    'word-counts'
    """
    if not isinstance(name, str):
        raise TopologyError(
            f"{context}: {what} is of type {type(name).__name__}, not a name; give one string"
        )
    try:
        return check_store_name(name) if what == "store" else check_topic_name(name)
    except ValueError as error:
        # Node names follow the topic rule because topics are named after them.
        raise TopologyError(f"{context}: {str(error).replace('topic name', what, 1)}") from None


def check_names(names: object, what: str, context: str) -> tuple[str, ...]:
    """Return names as a tuple.

    Raise `TopologyError` for a single string, an illegal name or a duplicate.
    """
    if not is_series(names):
        raise TopologyError(
            f"{context}: {what} is of type {type(names).__name__}; give a list of names"
        )
    singular = what.removesuffix("s")
    checked = tuple(check_name(name, singular, context) for name in names)
    for name in checked:
        if checked.count(name) > 1:
            raise TopologyError(f"{context}: {singular} {name!r} is given twice; leave one out")
    return checked


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for a similar known name, else up to five known names, or "".

    >>> did_you_mean("conts", ["counts", "totals"])
    "; did you mean 'counts'?"
    >>> did_you_mean("x", ["counts", "totals"])
    "; there are 'counts', 'totals'"
    """
    names = sorted(candidates)
    near = get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = ", ".join(map(repr, names[:5]))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004 - as many as are shown
    return f"; there are {shown}{more}" if names else ""
