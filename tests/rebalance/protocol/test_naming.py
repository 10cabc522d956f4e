"""Names of members for people."""

import pytest

from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import MemberRecord

STORED = "7e65c5d0a1b24c3f9e8d7c6b5a493827"


@pytest.mark.parametrize(
    ("member", "host", "slot", "static", "name"),
    [
        (STORED, "kafka-1", 2, False, "kafka-1/2 (7e65c5)"),
        ("order-totals-1", "kafka-1", 0, True, "kafka-1/0 (order-totals-1)"),
        (STORED, "kafka-1", -1, False, "kafka-1 (7e65c5)"),
        (STORED, "", 0, False, "7e65c5"),
    ],
)
def test_a_member_has_a_name_for_people(
    member: str, host: str, slot: int, static: bool, name: str
) -> None:
    record = MemberRecord(
        leader_epoch=1, member=member, incarnation="i", phase="ACTIVE", host=host, slot=slot,
        static=static,
    )  # fmt: skip
    assert display_name(record) == name
