"""Decoder: any bytes give a record or a rejection, and no reader fails."""

import json
import re
import unicodedata
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.damage import bounded
from tests.rebalance.leader.attacked import Supervised
from tests.rebalance.leader.hostile import hostile, originals, settled_table
from tests.rebalance.leader.round_table import join
from tidewheel.rebalance.inspect.describe import LogEntry, LogFold, describe_group, phase_of
from tidewheel.rebalance.inspect.history import Chronicle, episode_text
from tidewheel.rebalance.model import EPOCH_MAX, TaskPhase
from tidewheel.rebalance.protocol.decoding import RejectedRecord, Rejection
from tidewheel.rebalance.protocol.group import (
    EPOCHS_SKIPPED_MAX,
    FIRST_EPOCH_MAX,
    Group,
    apply,
    refusal_of,
    replay,
)
from tidewheel.rebalance.protocol.messages import (
    MESSAGE_BYTES_MAX,
    Beat,
    decode_message,
    encode_message,
    read_message,
)
from tidewheel.rebalance.protocol.plain_text import UNPRINTABLE, plain_text
from tidewheel.rebalance.protocol.records import (
    RECORD_BYTES_MAX,
    LeaderClaim,
    decode_record,
    encode_record,
    read_record,
)

pytestmark = pytest.mark.fault("DOORS")

RECORDS, MESSAGES = originals()


def _field(answer: object) -> str:
    assert isinstance(answer, Rejection), answer
    return answer.field


def _record(kind: str, **changes: Any) -> bytes:
    """Return a real record with changed fields; None removes one."""
    row = next(each for each in map(json.loads, RECORDS) if each["kind"] == kind)
    row |= changes
    return json.dumps({key: each for key, each in row.items() if each is not ...}).encode()


def _message(kind: str, **changes: Any) -> bytes:
    row = next(each for each in map(json.loads, MESSAGES) if each["kind"] == kind)
    return json.dumps(row | changes).encode()


_TASK = {"task": "0_0", "role": "active", "epoch": 1, "state": "R"}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (_record("TASK", task="x"), "task"),
        (_record("TASK", task="../../etc"), "task"),
        (_record("TASK", task="0_1\n"), "task"),
        (_record("TASK", task="00_1"), "task"),
        (_record("TASK", task=f"{10**12}_1"), "task"),
        (_record("TASK", task=None), "task"),
        (_record("TASK", task=...), "record"),
        (_record("TASK", phase="ASLEEP"), "phase"),
        (_record("TASK", phase="RELEASED", owner="a-1"), "owner"),
        (_record("TASK", phase="RUNNING", owner=None), "owner"),
        (_record("TASK", task_epoch=-1), "task_epoch"),
        (_record("TASK", task_epoch=2**60), "task_epoch"),
        (_record("TASK", task_epoch=10**30), "task_epoch"),
        (_record("TASK", task_epoch=1.5), "task_epoch"),
        (_record("TASK", input={"orders": 3}), "input (key)"),
        (_record("TASK", input={"orders-0": -3}), "input[...]"),
        (_record("TASK", v=0), "v"),
        (_record("TASK", leader_epoch="1"), "leader_epoch"),
        (_record("GROUP", tasks={"x": {}}), "tasks (key)"),
        (_record("GROUP", partitions={"orders": 0}), "partitions[...]"),
        (_record("GROUP", partitions={"orders": 10**9}), "partitions[...]"),
        (_record("GROUP", partitions={"a": 900_000, "b": 900_000}), "partitions"),
        (_record("GROUP", partitions={"or/ders": 1}), "partitions (key)"),
        (_record("TARGET", owners={"x": "a"}), "owners (key)"),
        (_record("TARGET", owners={"0_0": ""}), "owners[...]"),
        (_record("STEP", learners={"x": ["a-1", 1]}), "learners (key)"),
        (_record("STEP", learners={"0_0": ["a-1", -1]}), "learners[...][1]"),
        (_record("STEP", parked=["x"]), "parked[0]"),
        (_record("MEMBER", phase="ASLEEP"), "phase"),
        (_record("MEMBER", threads=0), "threads"),
        (_record("MEMBER", threads=10**9), "threads"),
        (_record("MEMBER", session_timeout_ms=10**15), "session_timeout_ms"),
        (_record("MEMBER", member="\x1b[2J"), "member"),
        (_record("MEMBER", member="b\u202ea"), "member"),
        (_record("MEMBER", member="a\u200b"), "member"),
        (_record("MEMBER", host="a\ufeff"), "host"),
        (_record("MEMBER", protocol=[2, 1]), "protocol"),
        (_record("LEADER_CLAIM", leader_epoch=3, previous_epoch=3), "leader_epoch"),
        (b'{"kind":"WEATHER","leader_epoch":1}', "kind"),
        (b"null", "record"),
        (b"[]", "record"),
        (b"", "record"),
        (b"\xff", "record"),
        (b'{"kind":"LEADER_CLAIM","leader_epoch":1,"leader":"\xff"}', "record"),
        (b'{"kind":"LEADER_CLAIM","leader_epoch":1,"leader":"\\ud800"}', "record"),
        (b'{"kind":"TASK","x":' + b"[" * 100_000, "record"),
        (b'{"kind":"LEADER_CLAIM","leader_epoch":NaN,"leader":"a"}', "record"),
        (b" " * 1_000_000, "record"),
        (_record("TASK") + b" " * RECORD_BYTES_MAX, "record"),
    ],
)
def test_an_invalid_record_is_rejected_with_its_field(data: bytes, field: str) -> None:
    with bounded():
        read_record(data)
    assert _field(read_record(data)) == field
    assert decode_record(data) is None


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (_message("JOIN", threads=0), "threads"),
        (_message("JOIN", threads=10**9), "threads"),
        (_message("JOIN", tasks=[{"task": "../../etc"}]), "tasks[0].task"),
        (
            _message("JOIN", tasks=[{"task": "0_0", "changelogs": ["../x"]}]),
            "tasks[0].changelogs[0]",
        ),
        (_message("JOIN", on_disk=[{"task": "x"}]), "on_disk[0].task"),
        (_message("JOIN", transactional_ids=["payments-prod-0"]), "transactional_ids"),
        (_message("JOIN", transactional_ids=["shop-leader"]), "transactional_ids"),
        (_message("JOIN", transactional_ids=["shop-a-1-0", "shop-b-1-0"]), "transactional_ids"),
        (_message("JOIN", transactional_ids=[""]), "transactional_ids[0]"),
        (_message("JOIN", transactional_ids=[]), "transactional_ids"),
        (_message("JOIN", partitions={"orders": -1}), "partitions[...]"),
        (_message("JOIN", member=""), "member"),
        (_message("JOIN", protocol=[9, 1]), "protocol"),
        (_message("BEAT", seq=-2), "seq"),
        (_message("BEAT", seq=2**63), "seq"),
        (
            _message("BEAT", tasks=[{"task": "x", "role": "active", "epoch": 1, "state": "R"}]),
            "tasks[0].task",
        ),
        (
            _message("BEAT", tasks=[{"task": "0_0", "role": "boss", "epoch": 1, "state": "R"}]),
            "tasks[0].role",
        ),
        (
            _message(
                "BEAT",
                tasks=[{"task": "0_0", "role": "active", "epoch": 1, "state": "R", "rate": -1}],
            ),
            "tasks[0].rate",
        ),
        *(
            (_message("BEAT", tasks=[_TASK | {field: number}]), f"tasks[0].{field}")
            for field in ("dropped", "skipped")
            for number in (-5, 2**64, 10**400)
        ),
        (_message("BEAT", member="b\u202ea"), "member"),
        (_message("BEAT", tasks=[_TASK | {"state": "R\u2066"}]), "tasks[0].state"),
        (_message("LEADER_BEAT", leader_epoch=2**60), "leader_epoch"),
        (b'{"kind":"TELEPATHY","app":"shop","member":"a","incarnation":"a-1"}', "kind"),
        (b" " * (MESSAGE_BYTES_MAX + 1), "message"),
        (_message("BEAT") + b" " * MESSAGE_BYTES_MAX, "message"),
    ],
)
def test_an_invalid_message_is_rejected_with_its_field(data: bytes, field: str) -> None:
    with bounded():
        read_message(data)
    assert _field(read_message(data)) == field
    assert decode_message(data) is None


def test_a_null_message_is_rejected_and_a_null_record_is_a_tombstone() -> None:
    assert _field(read_message(None)) == "message"
    assert read_record(None) is None


def test_a_kind_of_a_later_version_is_skipped_silently() -> None:
    assert read_record(b'{"kind":"WEATHER","leader_epoch":1,"v":3}') is None
    assert read_message(b'{"kind":"WEATHER","app":"shop","v":3}') is None


@given(st.one_of(hostile(RECORDS), hostile(MESSAGES)))
def test_a_rejection_is_one_line_without_the_content(data: bytes) -> None:
    with bounded():
        answers = (read_record(data), read_message(data))
    for answer in answers:
        if isinstance(answer, Rejection):
            assert str(answer).isprintable()
            assert len(str(answer)) < 500
            assert "payments" not in str(answer)
            assert "evilmod" not in str(answer)
        elif answer is not None:
            assert answer == (decode_record(data) or decode_message(data))


@given(hostile(RECORDS))
def test_decoded_records_can_be_encoded_again(data: bytes) -> None:
    with bounded():
        record, message = decode_record(data), decode_message(data)
    assert record is None or decode_record(encode_record(record)) is not None
    assert message is None or decode_message(encode_message(message)) is not None


def test_unprintable_characters_are_removed_from_texts() -> None:
    record = read_record(_record("TARGET", reason="gone\n\x1b[2Jcleared"))
    assert getattr(record, "reason", "") == "gone  [2Jcleared"
    beat = read_message(_message("LEADER_BEAT", alarms=["fine", "b\u202ea"]))
    assert getattr(beat, "alarms", ()) == ("fine", "b a")


def test_unprintable_characters_are_removed_from_texts_of_tasks() -> None:
    texts = {"waits": "no\x1b]0;x\x07", "drop": "few\n", "misplaced": "\x1b[31mEVIL\nFAKE"}
    plain = {"waits": "no ]0;x ", "drop": "few ", "misplaced": " [31mEVIL FAKE"}
    beat = read_message(_message("BEAT", tasks=[_TASK | texts, _TASK]))
    assert isinstance(beat, Beat)
    assert [msgspec.to_builtins(task) for task in beat.tasks] == [_TASK | plain, _TASK]


@pytest.mark.parametrize("number", range(0, 0x110000, 0x8000))
def test_names_exclude_the_same_characters_as_texts(number: int) -> None:
    for character in map(chr, range(number, number + 0x8000)):
        is_plain = plain_text(character) == character
        assert bool(re.fullmatch(f"[^{UNPRINTABLE}]", character)) is is_plain
        if character.isprintable():
            assert is_plain, f"U+{ord(character):04X}"
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            assert not is_plain, f"U+{ord(character):04X}"


# -- the fold ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [0, 7, FIRST_EPOCH_MAX])
def test_a_claim_that_would_leave_no_room_for_the_next_is_skipped(known: int) -> None:
    group = replay(
        [LeaderClaim(leader_epoch=known, leader="p", previous_epoch=known - 1)] if known else []
    )
    limit = max(known + EPOCHS_SKIPPED_MAX, FIRST_EPOCH_MAX)
    forged = LeaderClaim(leader_epoch=limit + 1, leader="evil", previous_epoch=limit)
    assert apply(group, forged) is group
    assert refusal_of(group, forged) is not None
    after = apply(group, LeaderClaim(leader_epoch=limit, leader="q", previous_epoch=limit - 1))
    assert after.leader_epoch == limit
    following = LeaderClaim(leader_epoch=limit + 1, leader="r", previous_epoch=limit)
    assert read_record(encode_record(following)) == following
    assert apply(after, following).leader == "r"
    assert FIRST_EPOCH_MAX > EPOCH_MAX + 1


@given(st.lists(hostile(RECORDS), max_size=8), st.randoms(use_true_random=False))
def test_the_fold_never_fails_and_skips_rejected_records(forged: list[bytes], chance: Any) -> None:
    rows = list(RECORDS)
    for each in forged:
        rows.insert(chance.randint(0, len(rows)), each)
    fold, chronicle, plain = LogFold("state"), Chronicle(), Group()
    with bounded():
        for offset, data in enumerate(rows):
            plain = _folded(offset, data, fold, chronicle, plain)
        describe_group(fold.group, fold.phase)
        assert all(episode_text(each, str) for each in chronicle.episodes())
    assert fold.group == plain
    assert fold.rejected_count >= len(fold.rejected)


def _folded(offset: int, data: bytes, fold: LogFold, chronicle: Chronicle, plain: Group) -> Group:
    record = read_record(data)
    if record is None:
        return plain
    entry: LogEntry | RejectedRecord
    if isinstance(record, Rejection):
        entry = RejectedRecord(topic="state", partition=0, offset=offset, rejection=record)
    else:
        entry = LogEntry(offset, offset, record)
        plain = apply(plain, record)
    fold.add(entry)
    chronicle.add(entry)
    assert fold.phase is phase_of(fold.group)
    step = fold.group.step
    assert set(fold.copy_since) == {
        (task, copy.incarnation, copy.learn_epoch)
        for task in {*step.learners, *step.standbys}
        for copy in step.copies(task)
    }
    return plain


# -- members and the leader ----------------------------------------------------------------------------------------------


def _attacked() -> Supervised:
    return settled_table(Supervised)


def _under(data: bytes, epoch: int) -> bytes:
    """Return a record at the current leader's epoch, if it has one."""
    try:
        row: Any = json.loads(data)
    except (ValueError, RecursionError):
        return data
    fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    if isinstance(fields.get("leader_epoch"), int) and fields.get("kind") != "LEADER_CLAIM":
        fields["leader_epoch"] = epoch
    return json.dumps(row).encode()


@given(
    st.lists(st.tuples(st.booleans(), hostile(RECORDS), hostile(MESSAGES)), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_record_ends_a_leader_or_a_member(
    attack: list[tuple[bool, bytes, bytes]], leader_dies: bool
) -> None:
    table = _attacked()
    owners = table.owners()
    with bounded():
        for in_log, record, message in attack:
            if in_log:
                table.forge(_under(record, table.group.leader_epoch))
            else:
                table.receive_raw(message)
            table.turns(2)
    if leader_dies:
        table.coordinator = table.lead("p1")
        table.until_settled()
        return
    table.restate()
    table.turns(12)
    assert table.group == table.coordinator.group
    if all(in_log for in_log, _, _ in attack):
        assert table.owners().keys() >= owners.keys()


@given(st.lists(hostile(RECORDS), min_size=1, max_size=5))
def test_rejected_records_change_nothing(attack: list[bytes]) -> None:
    table = _attacked()
    before = table.group
    rejected = [each for each in attack if isinstance(read_record(each), Rejection)]
    for each in rejected:
        table.forge(
            _under(each, before.leader_epoch)
            if isinstance(read_record(_under(each, before.leader_epoch)), Rejection)
            else each
        )
    assert table.group is before
    table.turns(8)
    assert set(table.phases().values()) == {TaskPhase.RUNNING.value}


def test_a_forged_heartbeat_of_a_huge_epoch_stops_no_leader() -> None:
    table = _attacked()
    worker = table.workers["a-1"]
    table.receive_raw(_message("LEADER_BEAT", leader_epoch=2**52, incarnation="evil", seen={}))
    before = worker.member.decide(table.now_ms).lease_until_ms
    table.turns(6)
    after = worker.member.decide(table.now_ms).lease_until_ms
    assert before is not None
    assert after is not None
    assert after > before


def test_a_joiner_with_threads_and_tasks_out_of_range_changes_nothing() -> None:
    table = _attacked()
    members = set(table.group.members)
    joiner = json.loads(encode_message(join("evil")))
    for change in ({"threads": 0}, {"tasks": [{"task": "../../etc"}]}, {"threads": 10**9}):
        table.receive_raw(json.dumps(joiner | change).encode())
        table.turns(3)
    assert set(table.group.members) == members
