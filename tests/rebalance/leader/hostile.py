"""Hostile control records: real records, mutated."""

import copy
import json
from functools import lru_cache
from typing import Any, TypeVar, cast

from hypothesis import strategies as st

from tests.rebalance.leader.round_table import RoundTable, join, stateful, with_settings
from tidewheel.rebalance.model import MemberPhase, TaskPhase
from tidewheel.rebalance.protocol.messages import encode_message
from tidewheel.rebalance.protocol.records import encode_record

_Table = TypeVar("_Table", bound=RoundTable)

#: Values invalid in most fields.
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**9,
    2**53,
    2**63 - 1,
    2**64,
    10**30,
    -(2**63),
    1.5,
    -0.0,
    1e308,
    "",
    "x",
    "0_0",
    "9_9",
    "99999999999_1",
    "../../etc",
    "evilmod:x",
    "payments-prod-0",
    "\x1b[2J",
    "\u0000",
    "a\nb",
    "orders-3",
    "NaN",
    "WEIRD",
    "y" * 2_000,
    [],
    ["x"],
    [[]],
    {},
    {"x": 1},
    {"0_0": "ghost"},
    {"../../etc": {}},
    {"0_0": ["ghost", 2**53]},
)


def settled_table(kind: type[_Table]) -> _Table:
    table = kind(with_settings(num_standby_replicas=1, settling_ms=0))
    for name in "ab":
        table.start(name, tasks=stateful(3), partitions={"orders": 3})
    table.run(4_000, step_ms=250)
    table.start("c", tasks=stateful(3), partitions={"orders": 3})
    table.run(4_000, step_ms=250)
    table.kill("c-1")
    table.run(4_000, step_ms=250)
    return table


@lru_cache(maxsize=1)
def originals() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return records and messages of such a group, one per shape."""
    table = settled_table(RoundTable)
    joins = join("d", tasks=stateful(3), partitions={"orders": 3})
    return (
        _one_of_each([encode_record(each) for each in table.log]),
        _one_of_each([encode_message(each) for each in [*table.said, joins]]),
    )


def _one_of_each(values: list[bytes]) -> tuple[bytes, ...]:
    found: dict[tuple[Any, ...], bytes] = {}
    for value in values:
        row = json.loads(value)
        found[row["kind"], row.get("phase"), row.get("event"), *sorted(row)] = value
    return tuple(found.values())


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - JSON
        inner = list(enumerate(items))
    for key, each in inner:
        found += _paths(each, (*path, key))
    return found


#: Copied per draw: later mutations change them in place.
_JUNK = st.sampled_from(JUNK).map(copy.deepcopy)


@st.composite
def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    row = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(row)
        if not paths:
            break
        *parents, last = draw(st.sampled_from(paths))
        inner: Any = row
        for each in parents:
            inner = inner[each]
        match draw(st.sampled_from(["replace", "remove", "rename", "add"])):
            case "replace":
                inner[last] = draw(_JUNK)
            case "remove":
                del inner[last]
            case "rename" if isinstance(last, str):
                inner[draw(st.sampled_from(["x", "../../etc", "0_7", "9_9", "\x1b"]))] = inner.pop(
                    last
                )
            case _ if isinstance(last, str):
                inner[draw(st.sampled_from(["x", "0_1", "v", "kind"]))] = draw(_JUNK)
            case _:
                inner.append(draw(_JUNK))
    return json.dumps(row).encode()


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(damaged) - 1, 0)))
        match draw(st.sampled_from(["set", "cut", "insert", "end"])):
            case "set" if damaged:
                damaged[at] = draw(st.integers(0, 255))
            case "cut":
                del damaged[at : at + draw(st.integers(1, 8))]
            case "insert":
                damaged[at:at] = draw(st.binary(max_size=8))
            case _:
                del damaged[at:]
    return bytes(damaged)


def hostile(values: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    nested = st.integers(1, 100_000).map(lambda depth: b'{"kind":"TASK","x":' + b"[" * depth)
    real = st.sampled_from(values)
    return st.one_of(
        real.flatmap(_mutated),
        real.flatmap(_mutated),
        real.flatmap(_damaged),
        st.binary(max_size=40),
        nested,
        real,
    )


_PHASES = st.sampled_from([*TaskPhase])
_COUNTERS = st.sampled_from([0, 1, 2, 5, 7, 50, 10**6, 2**32, 2**53])
_FAR_OFF = st.sampled_from([0, 1, 60_000, 86_400_000, 2**53])


@st.composite
def lies(draw: st.DrawFn, members: tuple[str, ...], tasks: tuple[str, ...]) -> dict[str, Any]:
    """Draw a well-formed foreign record without a leader epoch; incarnations end in -1."""
    names = st.sampled_from([*members, "ghost"])
    incarnations = st.sampled_from(
        [f"{each}-{life}" for each in (*members, "ghost") for life in (1, 9)]
    )
    ids = st.sampled_from([*tasks, "0_9", "7_7"])

    def some(**fields: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {name: draw(each) for name, each in fields.items() if draw(st.booleans())}

    copies = st.tuples(incarnations, _COUNTERS).map(list)
    match draw(
        st.sampled_from(
            ["TASK", "TASK", "MEMBER", "MEMBER", "STEP", "TARGET", "GROUP", "SNAP_BEGIN"]
        )
    ):
        case "TASK":
            phase = draw(_PHASES)
            row = {
                "kind": "TASK",
                "task": draw(ids),
                "phase": phase.value,
                "task_epoch": draw(_COUNTERS),
            }
            row |= some(
                next_member=names,
                member=names,
                input=st.just({"orders-0": 2**62}),
                deadline_ms=_FAR_OFF,
            )
            owned = phase not in (TaskPhase.UNOWNED, TaskPhase.RELEASED)
            return row | ({"owner": draw(incarnations)} if owned else {})
        case "MEMBER":
            row = {"kind": "MEMBER", "member": draw(names), "incarnation": draw(incarnations)}
            row["phase"] = draw(st.sampled_from([*MemberPhase])).value
            return row | some(
                topology_epoch=_COUNTERS,
                topology_hash=st.just("other"),
                protocol=st.just([1, 7]),
                session_timeout_ms=st.sampled_from([1, 86_400_000]),
                threads=st.just(65_536),
                rejoin_ms=_FAR_OFF,
                rejoin_timeout_ms=_FAR_OFF,
                drain_ms=_FAR_OFF,
                static=st.just(True),
                shutdown=st.just("x"),
                assignor=st.just("other"),
                transactional_ids=st.just(["payments-prod-0"]),
            )
        case "STEP":
            return {
                "kind": "STEP",
                "group_epoch": draw(_COUNTERS),
                "step_epoch": draw(_COUNTERS),
                "learners": draw(st.dictionaries(ids, copies, max_size=2)),
                "standbys": draw(st.dictionaries(ids, st.lists(copies, max_size=3), max_size=2)),
                "parked": draw(st.lists(ids, max_size=2)),
            }
        case "TARGET":
            return {
                "kind": "TARGET",
                "group_epoch": draw(_COUNTERS),
                "owners": draw(st.dictionaries(ids, names, max_size=4)),
                "standbys": draw(st.dictionaries(ids, st.lists(names, max_size=3), max_size=2)),
                "basis": draw(st.sampled_from(["", "x", "x/1", "THE BASIS"])),
            }
        case "GROUP":
            shapes = st.just({"stateful": True, "changelogs": ["x"]})
            row = {"kind": "GROUP", "tasks": draw(st.dictionaries(ids, shapes, max_size=4))}
            return row | some(
                group_version=st.just(7),
                topology_epoch=_COUNTERS,
                topology_hash=st.just("other"),
                assignor=st.just("evilmod:x"),
                held=st.just("evil"),
                ended=st.lists(incarnations, max_size=2),
                pinned=st.just(True),
            )
        case kind:
            return {"kind": kind}
