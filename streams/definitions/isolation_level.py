"""Isolation levels of interactive queries (KIP-892)."""

from enum import StrEnum

from tidewheel.streams.errors import StreamsError


class IsolationLevel(StrEnum):
    """Which rows a query of a store reads.

    `READ_COMMITTED`: what is committed. `READ_UNCOMMITTED`: also what the running tasks have changed since, as their
    processors see it; an abort takes that back.

    >>> IsolationLevel("read_committed") is IsolationLevel.READ_COMMITTED
    True
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def given_level(given: object) -> IsolationLevel:
    """Return an isolation level that a user gave to a query; raises `StreamsError` if it is none.

    >>> given_level("read_uncommitted").name
    'READ_UNCOMMITTED'
    """
    for level in IsolationLevel:
        if given == level:
            return level
    raise StreamsError(
        f"store(isolation_level={given!r}): it must be 'read_committed' or 'read_uncommitted', or None for "
        "default_interactive_query_isolation_level"
    )
