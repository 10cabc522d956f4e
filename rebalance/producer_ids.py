"""Transactional ids: how they are formed, and which belong to this application.

Fencing ends a producer for good, and anyone may have written ids of another application into a
control topic. So only ids in the exact forms of this application are fenced.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

#: Bytes of an incarnation's name, which is written in hexadecimal.
INCARNATION_BYTES: Final = 16

_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]*"
_NUMBER: Final = "(0|[1-9][0-9]{0,9})"
#: Suffix of the id of a second producer, which sends a refused batch again in parts to find the
#: refused records.
SEARCH_SUFFIX: Final = "-search"
_SEARCH: Final = f"({SEARCH_SUFFIX})?"
#: Ids without the application id: of group members, fixed assignments, `tidewheel bootstrap`,
#: `reshard` and the outputs of `backfill`.
_GROUP: Final = f"[0-9a-f]{{{2 * INCARNATION_BYTES}}}-{_NUMBER}{_SEARCH}"
_FIXED: Final = f"fixed-({_NAME}-)?{_NUMBER}{_SEARCH}"
_BOOTSTRAP: Final = f"bootstrap-{_NAME}"
_RESHARD: Final = "reshard"
_BACKFILL: Final = "backfill"
_OUTPUTS: Final = f"{_BACKFILL}-out"
_OUTPUT: Final = f"{_OUTPUTS}-[A-Za-z0-9._-]+-{_NUMBER}{_SEARCH}"
_OUTSIDE_GROUPS: Final = f"{_FIXED}|{_BOOTSTRAP}|{_RESHARD}|{_BACKFILL}|{_OUTPUT}"


def group_id(application_id: str, incarnation: str, number: int) -> str:
    """Return the `number`th transactional id of an incarnation.

    >>> group_id("shop", "a1", 2)
    'shop-a1-2'
    """
    return f"{application_id}-{incarnation}-{number}"


def reshard_id(application_id: str) -> str:
    """Return the transactional id of `tidewheel reshard`."""
    return f"{application_id}-{_RESHARD}"


def backfill_id(application_id: str) -> str:
    """Return the transactional id of `tidewheel backfill`, which fences earlier runs of it."""
    return f"{application_id}-{_BACKFILL}"


def output_id(application_id: str, topic: str, partition: int) -> str:
    """Return the transactional id of a backfill's writer of one sink partition.

    >>> output_id("shop", "alerts", 3)
    'shop-backfill-out-alerts-3'
    """
    return f"{application_id}-{_OUTPUTS}-{topic}-{partition}"


def is_group_id(transactional_id: str, application_id: str, incarnation: str) -> bool:
    """Return True if the incarnation can use this id.

    >>> is_group_id("shop-a1-0", "shop", "a1"), is_group_id("shop-eu-0", "shop", "a1")
    (True, False)
    """
    prefix = f"{application_id}-{incarnation}-"
    number = transactional_id.removeprefix(prefix)
    return number != transactional_id and re.fullmatch(_NUMBER, number) is not None


def own_ids(application_id: str, transactional_ids: Iterable[str]) -> list[str]:
    """Return this application's ids, sorted; the leader's id is not included.

    >>> member = f"shop-{'0a' * 16}-0"
    >>> own_ids("shop", [member, "shop-fixed-1", "shop-prod-0", "shopping-fixed-0", "", "shop-leader"]) == [member, "shop-fixed-1"]
    True
    >>> own_ids("shop", ["shop-fixed-1-search"])
    ['shop-fixed-1-search']
    """
    return _matching(application_id, f"{_GROUP}|{_OUTSIDE_GROUPS}", transactional_ids)


def own_ids_outside_groups(application_id: str, transactional_ids: Iterable[str]) -> list[str]:
    """Return this application's ids of producers outside groups, sorted.

    >>> own_ids_outside_groups("shop", [f"shop-{'0a' * 16}-0", "shop-fixed-1", "shop-bootstrap-counts"])
    ['shop-bootstrap-counts', 'shop-fixed-1']
    """
    return _matching(application_id, _OUTSIDE_GROUPS, transactional_ids)


def _matching(application_id: str, form: str, transactional_ids: Iterable[str]) -> list[str]:
    pattern = _pattern(application_id, form)
    return sorted(
        {
            transactional_id
            for transactional_id in transactional_ids
            if pattern.fullmatch(transactional_id)
        }
    )


@lru_cache(maxsize=64)
def _pattern(application_id: str, form: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(application_id)}-({form})")
