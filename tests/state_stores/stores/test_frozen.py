"""Public generic values are frozen."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tidewheel import (
    AggregationWithHeaders,
    Materialized,
    Record,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
    Windowed,
)
from tidewheel.streams.testing.driver import TestRecord

#: Classes with type parameters, and their arguments.
MADE: dict[Any, tuple[Any, ...]] = {
    Record[str, int]: ("a", 1, 5),
    TestRecord[str, int]: ("a", 1, 5),
    Windowed[str]: ("a", 0, 5),
    ValueAndTimestamp[int]: (1, 5),
    ValueTimestampHeaders[int]: (1, 5),
    AggregationWithHeaders[int]: (1,),
    VersionedRecord[int]: (1, 5, None),
    Materialized[str, int]: ("a",),
}


@pytest.mark.parametrize("kind", MADE, ids=str)
def test_values_accept_type_parameters_and_are_frozen(kind: Any) -> None:
    made = kind(*MADE[kind])
    assert made == kind.__origin__(*MADE[kind])
    for name in ("timestamp", "name", "nothing"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(made, name, 6)
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(made, name)
