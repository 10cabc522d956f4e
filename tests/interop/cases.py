"""Random cases for the topologies: extreme parameters, few keys, equal values, time that jumps back."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    params: dict[str, Any]
    inputs: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_Chance = random.Random


def _windows(chance: _Chance) -> dict[str, Any]:
    size = chance.choice([1, 5, 10])
    params = {"size_ms": size, "grace_ms": chance.choice([0, 1, 5, 20])}
    if chance.random() < 0.5 and size > 1:
        params["advance_ms"] = chance.choice([1, 3, size])
    return params


#: Kafka Streams' windows expire before their results after a leap of stream time. Ours stay until
#: emitted (docs/guides/coming-from-kafka-streams.md), so these cases have a longer retention.
_LONG = {"retention_ms": 24 * 3600 * 1000}


def _emit(chance: _Chance) -> dict[str, Any]:
    return {"emit": "update"} if chance.random() < 0.5 else {"emit": "close", **_LONG}


def _kept(chance: _Chance, least: int, hidden: int) -> dict[str, Any]:
    """Return the emit time and a retention with which Kafka Streams sees its open windows.

    With the shortest retention its store hides the last `hidden` milliseconds: one of a session,
    two of a sliding window. Ours shows them.
    """
    if chance.random() < 0.5:
        return {"emit": "close", **_LONG}
    longer = chance.choice([hidden, hidden + 1, hidden + 10, hidden + 60, _LONG["retention_ms"]])
    return {"emit": "update", "retention_ms": least + longer}


def _sliding(chance: _Chance) -> dict[str, Any]:
    difference, grace = chance.choice([1, 5, 10]), chance.choice([0, 1, 5, 20])
    kept = _kept(chance, 2 * difference + grace, 2)
    return {"difference_ms": difference, "grace_ms": grace, **kept}


def _sessions(chance: _Chance) -> dict[str, Any]:
    gap, grace = chance.choice([1, 5, 10]), chance.choice([0, 1, 5, 20])
    return {"gap_ms": gap, "grace_ms": grace, **_kept(chance, gap + grace, 1)}


def _join(chance: _Chance) -> dict[str, Any]:
    return {
        "before_ms": chance.choice([0, 3, 10]),
        "after_ms": chance.choice([0, 3, 10]),
        "grace_ms": chance.choice([0, 2, 10, 50]),
    }


def _how(chance: _Chance, *kinds: str) -> dict[str, Any]:
    return {"how": chance.choice(kinds)}


def _history(chance: _Chance) -> dict[str, Any]:
    return {"history_ms": 60_000} if chance.random() < 0.4 else {}


def _stream_table(chance: _Chance) -> dict[str, Any]:
    params = {**_how(chance, "inner", "left"), **_history(chance)}
    params["view"] = chance.choice(["plain", "mapped"]) if "history_ms" not in params else "plain"
    if "history_ms" in params and chance.random() < 0.6:
        params["join_grace_ms"] = chance.choice([0, 3, 15])
    return params


PARAMS: Mapping[str, Callable[[_Chance], dict[str, Any]]] = {
    "stateless": lambda _: {},
    "table_operators": _history,
    "stream_aggregate": lambda _: {},
    "grouped_table": lambda chance: {
        "group": chance.choice(["same", "other"]),
        **_history(chance),
    },
    "time_windows": lambda chance: {**_windows(chance), **_emit(chance)},
    "sliding_windows": _sliding,
    "session_windows": _sessions,
    "unlimited_windows": lambda chance: {"start_ms": chance.choice([0, 5, 15])},
    "cogroup": lambda chance: {**_windows(chance), **_LONG},
    "suppress_limit": lambda chance: {
        "limit_ms": chance.choice([0, 2, 10]),
        "records": chance.choice([0, 1, 2, 3]),
    },
    "stream_stream_join": lambda chance: {
        **_join(chance),
        **_how(chance, "inner", "left", "outer"),
    },
    "self_join": lambda chance: {**_join(chance), "optimize": chance.random() < 0.5},
    "stream_table_join": _stream_table,
    "stream_global_join": lambda chance: _how(chance, "inner", "left"),
    "table_table_join": lambda chance: {
        **_how(chance, "inner", "left", "outer"),
        **_history(chance),
        "stored": chance.choice(["yes", "no"]),
        "grouped": chance.choice(["yes", "no"]),
    },
    "foreign_key_join": lambda chance: {**_how(chance, "inner", "left"), **_history(chance)},
}

_TWO_INPUTS = frozenset(
    {
        "grouped_table", "cogroup", "stream_stream_join", "stream_table_join", "stream_global_join",
        "table_table_join", "foreign_key_join",
    }
)  # fmt: skip


def make_cases(name: str, count: int, seed: int) -> Iterator[Case]:
    for number in range(count):
        chance = random.Random(f"{name}-{seed}-{number}")
        params = PARAMS[name](chance)
        yield Case(
            name=name,
            params=params,
            inputs=list(_inputs(name, chance, versioned="history_ms" in params)),
        )


def _inputs(name: str, chance: _Chance, *, versioned: bool) -> Iterator[dict[str, Any]]:
    now = chance.choice([0, 10, 100])
    topics = ["left", "right"] if name in _TWO_INPUTS else ["left"]
    keys: list[str | None] = ["a", "b", "c", *([None] if chance.random() < 0.4 else [])]
    letters = "abcd" if chance.random() < 0.7 else "abc"
    for number in range(chance.randint(10, 45)):
        draw = chance.random()
        if 0.3 <= draw < 0.75:
            now += chance.randint(1, 4)
        elif 0.75 <= draw < 0.85:
            now += chance.randint(5, 40)
        late = chance.randint(0, 25) if chance.random() < 0.3 else 0
        topic = chance.choice(topics)
        key = chance.choice(keys)
        if name == "foreign_key_join" and topic == "left" and key is not None:
            key = f"{key}{chance.randint(0, 1)}"
        empty = chance.random() < 0.12
        if empty and versioned:
            # Kafka Streams loses a deletion at its version's timestamp; ours keeps it as a version.
            now, late = now + 1, 0
        value = None if empty else f"{chance.choice(letters)}{number}"
        if name == "stream_global_join" and topic == "left" and value is not None:
            value = value[0]
        yield {"topic": topic, "key": key, "value": value, "ts": max(now - late, 0)}
