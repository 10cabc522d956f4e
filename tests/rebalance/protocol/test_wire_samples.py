"""Wire compatibility: samples of every protocol version stay readable (N14)."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import replay, snapshot
from tidewheel.rebalance.protocol.messages import (
    PROTOCOL_MAX,
    AnyMessage,
    decode_message,
    encode_message,
)
from tidewheel.rebalance.protocol.records import (
    RECORD_VERSION,
    AnyRecord,
    LeaderClaim,
    LogRecord,
    decode_record,
    encode_record,
)

SAMPLES = Path(__file__).parent / "wire_samples"
#: One file per kind and version; a snapshot file holds a log's records in order.
FILES = sorted(each for each in SAMPLES.glob("v*/*.json") if each.stem != "snapshot")
SNAPSHOTS = sorted(SAMPLES.glob("v*/snapshot.json"))
NEWEST = SAMPLES / f"v{PROTOCOL_MAX}"

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
    assert {key: again.get(key) for key in written} == written


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_N14_fields_of_the_next_version_are_ignored(file: Path) -> None:
    written: dict[str, Any] = json.loads(file.read_bytes())
    newer = _with_more(written) | {"v": 2}
    assert isinstance(newer, dict)
    known, unknown = _decode(file.read_bytes()), _decode(json.dumps(newer).encode())
    assert known is not None
    assert unknown == msgspec.structs.replace(known, v=2)


def _with_more(value: Any) -> Any:
    """Add an unknown field to every object that is not a table."""
    match value:
        case dict() if any(key in value for key in ("kind", "task")):
            return {key: _with_more(each) for key, each in value.items()} | {"added_in_v2": [1]}
        case list():
            return [_with_more(each) for each in value]
        case _:
            return value


def test_N14_an_unknown_message_kind_is_ignored() -> None:
    data = b'{"kind":"ADDED_IN_V2","app":"shop","member":"a","incarnation":"a1","leader_epoch":1}'
    assert (decode_message(data), decode_record(data)) == (None, None)


def test_N14_an_older_leader_restates_records_in_its_own_version() -> None:
    log = [
        decode_record(json.dumps(row | {"v": 2, "added_in_v2": [1]}).encode())
        for row in json.loads((NEWEST / "snapshot.json").read_bytes())
    ]
    group = replay([record for record in log if record is not None])
    restated = [json.loads(encode_record(each)) for each in snapshot(group, group.leader_epoch + 1)]
    assert len(restated) > len(group.members) + len(group.states) > 0
    assert {row.get("v", RECORD_VERSION) for row in restated} == {RECORD_VERSION}


def test_N14_messages_and_records_are_of_one_version() -> None:
    assert RECORD_VERSION == PROTOCOL_MAX


@pytest.mark.parametrize(
    "kind", get_args(AnyMessage) + get_args(AnyRecord), ids=lambda k: k.__name__
)
def test_N14_every_kind_and_field_has_a_sample(kind: type[msgspec.Struct]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    written = json.loads((NEWEST / f"{info.tag}.json").read_bytes())
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
