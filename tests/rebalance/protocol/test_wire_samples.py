"""Wire compatibility: samples of every protocol version stay readable (N14)."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, replay, snapshot
from tidewheel.rebalance.protocol.messages import (
    PROTOCOL_MAX,
    AnyMessage,
    decode_message,
    encode_message,
)
from tidewheel.rebalance.protocol.records import (
    RECORD_VERSION,
    SHARDS_HOLD,
    AnyRecord,
    GroupRecord,
    LeaderClaim,
    LogRecord,
    ShardRecord,
    decode_record,
    encode_record,
)

SAMPLES = Path(__file__).parent / "wire_samples"
#: One file per kind and version; a snapshot file holds a log's records in order.
FILES = sorted(each for each in SAMPLES.glob("v*/*.json") if each.stem != "snapshot")
NEXT = PROTOCOL_MAX + 1
SNAPSHOTS = sorted(SAMPLES.glob("v*/snapshot.json"))
#: Fields that later versions do not read.
DROPPED = {"ranges", "hash_name"}

Wire = AnyMessage | AnyRecord


def _decode(data: bytes) -> Wire | None:
    return decode_message(data) or decode_record(data)


def _encode(value: Wire) -> bytes:
    if isinstance(value, LogRecord):
        return encode_record(value)
    return encode_message(value)


def _name(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_N14_written_samples_can_be_decoded(file: Path) -> None:
    data = file.read_bytes()
    written: dict[str, Any] = json.loads(data)
    value = _decode(data)
    assert value is not None
    assert file.stem == written["kind"]
    again = json.loads(_encode(value))
    kept = {key: field for key, field in written.items() if key not in DROPPED}
    assert {key: again.get(key) for key in kept} == kept


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_N14_fields_of_the_next_version_are_ignored(file: Path) -> None:
    written: dict[str, Any] = json.loads(file.read_bytes())
    newer = _with_more(written) | {"v": NEXT}
    assert isinstance(newer, dict)
    known, unknown = _decode(file.read_bytes()), _decode(json.dumps(newer).encode())
    assert known is not None
    assert unknown == msgspec.structs.replace(known, v=NEXT)


def _with_more(value: Any) -> Any:
    """Add an unknown field to every object that is not a table."""
    match value:
        case dict() if any(key in value for key in ("kind", "task")):
            return {key: _with_more(each) for key, each in value.items()} | {"added_later": [1]}
        case list():
            return [_with_more(each) for each in value]
        case _:
            return value


def test_N14_an_unknown_message_kind_is_ignored() -> None:
    data = b'{"kind":"ADDED_LATER","app":"shop","member":"a","incarnation":"a1","leader_epoch":1}'
    assert (decode_message(data), decode_record(data)) == (None, None)


def test_N14_an_older_leader_restates_records_in_its_own_version() -> None:
    log = [
        decode_record(json.dumps(row | {"v": NEXT, "added_later": [1]}).encode())
        for row in json.loads((SAMPLES / "v2" / "snapshot.json").read_bytes())
    ]
    group = replay([record for record in log if record is not None])
    restated = [json.loads(encode_record(each)) for each in snapshot(group, group.leader_epoch + 1)]
    assert len(restated) > len(group.members) + len(group.states) > 0
    assert {(row["kind"] == "SHARD", row.get("v", 1)) for row in restated} == {
        (True, RECORD_VERSION),
        (False, 1),
    }


def test_N14_messages_and_records_are_of_one_version() -> None:
    assert RECORD_VERSION == PROTOCOL_MAX


@pytest.mark.parametrize(
    "kind", get_args(AnyMessage) + get_args(AnyRecord), ids=lambda k: k.__name__
)
def test_N14_every_kind_and_field_has_a_sample(kind: type[msgspec.Struct]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    newest = max(file for file in FILES if file.stem == info.tag)
    written = json.loads(newest.read_bytes())
    assert {field.encode_name for field in info.fields} - {"v"} <= written.keys()


@pytest.mark.parametrize("file", SNAPSHOTS, ids=_name)
def test_N14_a_log_with_a_snapshot_gives_the_same_group(file: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(file.read_bytes())
    records = [decode_record(json.dumps(row).encode()) for row in rows]
    known = [record for record in records if record is not None]
    assert len(known) == len(rows)
    group = replay(known)
    assert group.pending is None
    assert group.states[TaskId(0, 1)].owner == "m1.2"
    claim = LeaderClaim(
        leader_epoch=group.leader_epoch, leader=group.leader, topic_ids=dict(group.topic_ids)
    )
    assert replay([claim, *snapshot(group, group.leader_epoch)]) == group


def test_N14_a_group_of_whole_tasks_is_written_as_by_version_1() -> None:
    rows = json.loads((SAMPLES / "v1" / "snapshot.json").read_bytes())
    group = replay([record for row in rows if (record := decode_record(json.dumps(row).encode()))])
    written = [encode_record(record) for record in snapshot(group, group.leader_epoch + 1)]
    assert written == (SAMPLES / "restated_v1.jsonl").read_bytes().splitlines()


def _readable_by_version_1(record: AnyRecord) -> AnyRecord | None:
    """Return the record without the fields that version 2 added; None for its kind."""
    if isinstance(record, ShardRecord):
        return None
    row = json.loads(encode_record(record))
    older = {key: field for key, field in row.items() if "shard" not in key}
    if isinstance(record, GroupRecord):
        older["tasks"] = {
            task: {key: field for key, field in fields.items() if key != "shards"}
            for task, fields in row.get("tasks", {}).items()
        }
    return decode_record(json.dumps(older).encode())


def test_N14_version_1_follows_a_log_with_shards() -> None:
    rows = json.loads((SAMPLES / "v2" / "snapshot.json").read_bytes())
    records = [decode_record(json.dumps(row).encode()) for row in rows]
    older = [known for record in records if record and (known := _readable_by_version_1(record))]
    group = replay(older)
    assert group.pending is None
    assert set(group.tasks) == {TaskId(0, 1), TaskId(1, 0)}
    assert group.states[TaskId(0, 1)].owner == "m1.2"


@pytest.mark.parametrize("own", ["", "partitions: topic in0 has 3"])
def test_N14_a_leader_of_version_1_holds_a_group_with_shards(own: str) -> None:
    about = GroupRecord(leader_epoch=1, shards=4, held=own)
    assert decode_record(encode_record(about)) == about
    older = _readable_by_version_1(about)
    assert older is not None
    restated = decode_record(encode_record(older))
    assert restated == GroupRecord(leader_epoch=1, held=SHARDS_HOLD + own)
    repaired = repair_group(Group(about=restated), app="shop").group
    assert repaired.about.held == SHARDS_HOLD + own
    whole = GroupRecord(leader_epoch=1, held=own)
    assert decode_record(encode_record(whole)) == whole


def test_a_snapshot_without_one_of_its_shards_is_incomplete() -> None:
    rows = json.loads((SAMPLES / "v2" / "snapshot.json").read_bytes())
    complete = [record for row in rows if (record := decode_record(json.dumps(row).encode()))]
    shards = [record for record in complete if isinstance(record, ShardRecord)]
    assert len(shards) == 2
    before = Group(leader_epoch=0)
    assert replay(complete, before).states.keys() >= {TaskId.parse("1_0/2of4")}
    assert not replay([each for each in complete if each is not shards[0]], before).states
