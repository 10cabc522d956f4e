"""Random programs of all operators and their inputs; the same for the same seed.

`RULES` lists programs that are not drawn because our answer differs on purpose.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.interop.programs import OPERATORS

Drawn = dict[str, Any]

_DAY_MS = 24 * 3600 * 1000
_STREAM_TOPICS = ("left", "right", "third")
_TABLE_TOPICS = ("rows", "others")
_WORLD = "world"
_HISTORY_MS = 60_000
_GRID_MS = 3
_MOST_STEPS = 6
_STEP_SALT = 10

_OF_TABLES = frozenset(
    {"lookup", "left_lookup", *(name for name in OPERATORS if name.startswith("table_"))}
)
_GLOBALLY = frozenset({"global_join", "global_left_join"})
_WITH_STORE_NAME = frozenset({"process", "timer", "clock"})
_GROUPING = frozenset({"count", "reduce", "aggregate", "cogroup"})
_REGROUPING = frozenset({"table_group_count", "table_group_reduce", "table_group_aggregate"})
_KEPT = frozenset(
    {
        "to_table", *_GROUPING, *_REGROUPING, "table_filter", "table_filter_not", "table_map_values",
        "table_transform_values", "table_join", "table_left_join", "table_outer_join",
        "table_foreign_join", "table_foreign_left_join",
    }
)  # fmt: skip
_ALWAYS_KEPT = frozenset({*_GROUPING, *_REGROUPING, "to_table"})
_UNNAMED = frozenset(
    {
        "peek", "flat_map_values", "timer", "clock", "table_filter_not", "table_transform_values",
        "table_to_stream_by", "table_group_reduce", "table_group_aggregate",
    }
)  # fmt: skip
_JOINS = frozenset({"stream_join", "stream_left_join", "stream_outer_join"})
_LOOKUPS = frozenset({"lookup", "left_lookup"})
_FOREIGN = frozenset({"table_foreign_join", "table_foreign_left_join"})
_DELETING = frozenset(
    {
        *_JOINS, "lookup", "left_lookup", "reduce", "aggregate", "cogroup", "windowed_reduce",
        "windowed_aggregate", "table_group_reduce", "table_group_aggregate", "table_join",
        "table_left_join", "table_outer_join", "table_foreign_join", "table_foreign_left_join",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A declared difference; `apply` changes a program in place to avoid it."""

    name: str
    reason: str
    apply: Callable[[Drawn], None]


def _records(program: Drawn) -> list[list[Any]]:
    return [row for row in program["inputs"] if row[0] is not None]


def _windowed(program: Drawn) -> list[Drawn]:
    return [step for step in program["steps"] if step["op"].startswith("windowed_")]


def _outlast(program: Drawn) -> None:
    for step in _windowed(program):
        plain = step["windows"] in ("time", "offset", "custom") and step["op"] != "windowed_cogroup"
        if step["windows"] != "unlimited" and not (
            plain and "suppress" not in step and not step.get("close")
        ):
            step.setdefault("kept", {})["retention"] = _DAY_MS


def _avoid_window_ends(program: Drawn) -> None:
    suppressed = [
        step
        for step in _windowed(program)
        if "suppress" in step and step["windows"] in ("session", "sliding")
    ]
    if not suppressed:
        return
    # Windows end at times with remainder 0 or, sliding ones, 1.
    for step in suppressed:
        step["size"] += -step["size"] % _GRID_MS
        step["grace"] += (1 - step["grace"]) % _GRID_MS
    for row in program["inputs"]:
        row[3] += -row[3] % _GRID_MS
    for source in program["sources"]:
        if "shift" in source:
            source["shift"] = _GRID_MS


def _later_deletions(program: Drawn) -> None:
    if any("history" in source.get("kept", ()) for source in program["sources"]):
        last = 0
        for row in _records(program):
            if row[2] is None:
                row[3] = last + _GRID_MS
            last = max(last, row[3])


def _keyed(program: Drawn) -> None:
    optimized = program["config"]["optimize"] == "all"
    if any(
        (step["op"] == "left_lookup" and "grace" in step)
        or (optimized and step["op"] in ("stream_left_join", "stream_outer_join"))
        for step in program["steps"]
    ):
        for row in _records(program):
            row[1] = row[1] or "a"


_NAMING = frozenset({*_GROUPING, *_REGROUPING, "to_table"})


def _named_stores(program: Drawn) -> None:
    for step in program["steps"]:
        op = step["op"]
        if "name" in step and (op in _NAMING or op.startswith("windowed_")):
            step.setdefault("kept", {}).setdefault("store", step["name"])


RULES = (
    Rule(
        "names of stores",
        "`name=` of an aggregation also names its store: Kafka Streams' programs name both.",
        _named_stores,
    ),
    Rule(
        "windows outlast leaps",
        "Results on window close are never lost, a cogroup keeps the windows of a stream that is behind, and the least"
        " retention hides no open session or sliding window: these windows are kept for a day.",
        _outlast,
    ),
    Rule(
        "the closing millisecond",
        "One closing rule per kind of window: `suppress` behind sliding windows and sessions gives results a millisecond"
        " later than Kafka Streams. Times are on a grid and graces beside it there, so that no record comes at that millisecond.",
        _avoid_window_ends,
    ),
    Rule(
        "deletions of versions",
        "A versioned table keeps a deletion at the very timestamp of the version it deletes: deletions come later.",
        _later_deletions,
    ),
    Rule(
        "records without a key",
        "Kafka Streams fails at a record without a key in a `left_join` with a versioned table and grace, and drops it in an"
        " optimised left or outer join of a stream with itself.",
        _keyed,
    ),
)


def draw(seed: int, number: int) -> Drawn:
    chance = random.Random(f"program {seed} {number}")
    operators = _names(chance)
    sources = _sources(chance, operators)
    program: Drawn = {
        "number": number,
        "config": {
            "cache": chance.choice([0, 0, 10 << 20]),
            "optimize": chance.choice(["all", "none"]),
            "format": "HEADERS" if chance.random() < 0.2 else "DEFAULT",
            "store": "in_memory" if chance.random() < 0.15 else "rocksdb",
        },
        "sources": sources,
        "steps": [_step(chance, name, place) for place, name in enumerate(operators)],
        "sinks": sorted({chance.randrange(12) for _ in range(chance.randint(1, 12))}),
        "inputs": [],
    }
    _fit(program)
    program["inputs"] = list(_inputs(chance, program))
    for rule in RULES:
        rule.apply(program)
    return program


def draws(seed: int, numbers: range) -> Iterator[Drawn]:
    for number in numbers:
        yield draw(seed, number)


def _names(chance: random.Random) -> list[str]:
    names = sorted(OPERATORS)
    return [chance.choice(names) for _ in range(chance.randint(1, _MOST_STEPS))]


def _sources(chance: random.Random, operators: list[str]) -> list[Drawn]:
    sources: list[Drawn] = []
    topics = _STREAM_TOPICS[: chance.randint(1, 3)]
    shift = chance.random() < 0.1
    for topic in topics:
        source: Drawn = {"kind": "stream", "topic": topic}
        if shift:
            source["shift"] = 3
        if chance.random() < 0.1:
            source["name"] = f"source-{topic}"
        sources.append(source)
    if chance.random() < 0.12:
        again = {key: value for key, value in sources[0].items() if key != "name"}
        sources.insert(chance.randrange(len(sources) + 1), again)
    if _OF_TABLES.intersection(operators):
        for topic in _TABLE_TOPICS[: chance.randint(1, 2)]:
            sources.insert(chance.randrange(len(sources) + 1), _table_source(chance, topic))
    if _GLOBALLY.intersection(operators):
        sources.insert(0, {"kind": "global", "topic": _WORLD})
    return sources


def _table_source(chance: random.Random, topic: str) -> Drawn:
    source: Drawn = {"kind": "table", "topic": topic}
    draw_one = chance.random()
    if draw_one < 0.2:
        source["kept"] = {"store": f"{topic}-store", "history": _HISTORY_MS, "cache": False}
    elif draw_one < 0.7:
        source["kept"] = {"store": f"{topic}-store", **_options(chance)}
    return source


def _options(chance: random.Random) -> Drawn:
    options: Drawn = {}
    if chance.random() < 0.3:
        options["cache"] = chance.random() < 0.3
    if chance.random() < 0.25:
        options["type"] = chance.choice(["in_memory", "rocksdb"])
    if chance.random() < 0.1:
        options["log"] = False
    return options


def _step(chance: random.Random, operator: str, place: int) -> Drawn:
    step: Drawn = {
        "op": operator,
        "salt": place * _STEP_SALT + chance.randrange(3),
        **{at: chance.randrange(12) for at in "abctu"},
    }
    if chance.random() < 0.25 and operator not in _UNNAMED:
        step["name"] = f"named{place}"
    if operator in _WITH_STORE_NAME:
        step["store"] = f"store{place}"
    if operator in _DELETING and chance.random() < 0.3:
        step["deletes"] = True
    for operators, draw_options in _OPTIONS:
        if operator in operators:
            draw_options(chance, step, place)
    return step


def _draw_group(chance: random.Random, step: Drawn, place: int) -> None:
    step["rekey"] = chance.random() < 0.4
    step["same"] = chance.random() < 0.3
    if chance.random() < 0.25:
        step["group_name"] = f"grouped{place}"


def _draw_arguments(chance: random.Random, step: Drawn, _place: int) -> None:
    if chance.random() < 0.3:
        step["arguments"] = 3


def _draw_global(chance: random.Random, step: Drawn, _place: int) -> None:
    step["arguments"] = chance.choice([2, 3, 4])
    if chance.random() < 0.3:
        step["misses"] = True


def _draw_cogroup(chance: random.Random, step: Drawn, _place: int) -> None:
    step["groups"] = chance.randint(1, 3)


def _keep(chance: random.Random, step: Drawn, place: int) -> None:
    always = step["op"] in _ALWAYS_KEPT
    if chance.random() < 0.55:
        step["kept"] = _options(chance)
        if not always or chance.random() < 0.6:
            step["kept"]["store"] = f"store{place}"


def _draw_join(chance: random.Random, step: Drawn, place: int) -> None:
    step["before"], step["after"] = chance.choice([0, 3, 10]), chance.choice([0, 3, 10])
    step["grace"] = chance.choice([0, 2, 10, 50])
    if chance.random() < 0.3:
        step["b"] = step["a"]
    if chance.random() < 0.3:
        step["store"] = f"store{place}"
    if chance.random() < 0.2:
        step["type"] = chance.choice(["in_memory", "rocksdb"])


def _draw_suppress(chance: random.Random, step: Drawn, _place: int) -> None:
    step["limit"] = chance.choice([0, 2, 10, 100])
    how = chance.random()
    if how < 0.6:
        step["bytes"] = chance.choice([60, 140, 200, 400])
    if how > 0.4:
        step["records"] = chance.choice([1, 2, 3, 5])


def _draw_windows(chance: random.Random, step: Drawn, place: int) -> None:
    kinds = ["time", "time", "sliding", "session", "unlimited", "offset", "custom"]
    step["windows"] = chance.choice(kinds)
    step["size"] = chance.choice([1, 4, 10])
    step["grace"] = chance.choice([0, 1, 5, 20])
    if step["windows"] == "offset":
        step["offset"] = chance.choice([-7, -1, 1, 2, 13])
    if step["windows"] in ("time", "offset") and chance.random() < 0.5:
        step["advance"] = chance.choice([1, 3, step["size"]])
        step["advance"] = min(step["advance"], step["size"])
    if step["windows"] == "unlimited":
        step["start"] = chance.choice([0, 5, 15])
    if step["op"] == "windowed_cogroup" or chance.random() < 0.5:
        step["kept"] = _options(chance)
        if chance.random() < 0.6:
            step["kept"]["store"] = f"store{place}"
    how = chance.random()
    final = step["windows"] != "unlimited"
    closes = step["windows"] in ("time", "sliding", "session")
    if how < 0.3 and closes and step["op"] != "windowed_cogroup":
        step["close"] = True
    elif how < 0.7 and final:
        step["suppress"] = chance.choice([0, 1000])
        if chance.random() < 0.3:
            step["suppress_name"] = f"held{place}"
    if chance.random() < 0.2:
        step["regroup"] = True


_WINDOWED = frozenset(name for name in OPERATORS if name.startswith("windowed_"))
_OPTIONS: tuple[tuple[frozenset[str], Callable[[random.Random, Drawn, int], None]], ...] = (
    (_KEPT, _keep),
    (_GROUPING | _REGROUPING | _WINDOWED, _draw_group),
    (_GLOBALLY, _draw_global),
    (_JOINS | _LOOKUPS | _FOREIGN, _draw_arguments),
    (frozenset({"cogroup", "windowed_cogroup"}), _draw_cogroup),
    (_JOINS, _draw_join),
    (frozenset({"table_suppress"}), _draw_suppress),
    (_WINDOWED, _draw_windows),
)


def _fit(program: Drawn) -> None:
    versioned = [
        source
        for source in program["sources"]
        if source["kind"] == "table" and "history" in source.get("kept", ())
    ]
    tables = [source for source in program["sources"] if source["kind"] == "table"]
    chance = random.Random(f"fit {program['number']}")
    for step in program["steps"]:
        if step["op"] in ("lookup", "left_lookup") and versioned and chance.random() < 0.6:
            step["t"] = tables.index(versioned[0])
            made = 0
            for earlier in program["steps"]:
                if earlier is step:
                    break
                made += 1
            if made == 0:
                step["grace"] = chance.choice([0, 3, 15])


def _inputs(chance: random.Random, program: Drawn) -> Iterator[list[Any]]:
    topics = sorted({source["topic"] for source in program["sources"]})
    keys = "abcdef"[: chance.choice([2, 3, 6])]
    keyless = 0.05 if chance.random() < 0.6 else 0
    with_headers = program["config"]["format"] == "HEADERS" and chance.random() < 0.5
    now = chance.choice([10, 20, 100])
    clock = any(step["op"] == "clock" for step in program["steps"])
    for number in range(chance.randint(12, 50)):
        drawn = chance.random()
        if 0.3 <= drawn < 0.75:
            now += chance.randint(1, 4)
        elif 0.75 <= drawn < 0.85:
            now += chance.randint(5, 40)
        elif drawn > 0.98:
            now += chance.randint(100, 400)
        late = chance.randint(0, 25) if chance.random() < 0.25 else 0
        key = None if chance.random() < keyless else chance.choice(keys)
        value = None if chance.random() < 0.12 else f"v{number}"
        row: list[Any] = [chance.choice(topics), key, value, max(now - late, 10)]
        if with_headers and chance.random() < 0.5:
            row.append([["h", f"x{number}"]])
        yield row
        if clock and chance.random() < 0.3:
            yield [None, None, None, chance.choice([3, 10, 25])]
    if chance.random() < 0.5:
        for topic in topics:
            yield [topic, "z", "last", now + 2000]
