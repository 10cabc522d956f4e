"""Isolation levels of interactive queries (KIP-892)."""

from enum import StrEnum

from tidewheel.streams.errors import StreamsError


class IsolationLevel(StrEnum):
    """Rows visible to an interactive query.

    `READ_COMMITTED`: committed rows. `READ_UNCOMMITTED`: also changes of running tasks since the
    last commit; an abort reverts those.

    >>> IsolationLevel("read_committed") is IsolationLevel.READ_COMMITTED
    True
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def checked_isolation_level(level_argument: object) -> IsolationLevel:
    """Return the isolation level of a query; raise `StreamsError` for other values.

    >>> checked_isolation_level("read_uncommitted").name
    'READ_UNCOMMITTED'
    """
    for level in IsolationLevel:
        if level_argument == level:
            return level
    raise StreamsError(
        f"store(isolation_level={level_argument!r}): it must be 'read_committed' or 'read_uncommitted', or None for "
        "default_interactive_query_isolation_level"
    )
