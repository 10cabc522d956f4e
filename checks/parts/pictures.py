"""Mermaid pictures of states, packages and a record's path, drawn from the code's tables."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any, Final, TypeVar

from checks.repository_files import ROOT
from tidewheel.rebalance.model import MEMBER_MOVES, TASK_MOVES
from tidewheel.streams.worker.application import application_state
from tidewheel.tasks.task import lifecycle

_State = TypeVar("_State", bound=Enum)
_PACKAGES: Final = ("streams", "tasks", "rebalance", "state_stores")

#: Steps of a record of `count()` until its commit: text, file and function. A test runs a record and
#: sees these calls in this order.
RECORD_PATH: Final = (
    ("poll", "tasks/loop/task_loop.py", "TaskLoop._fetch"),
    ("buffer by partition", "tasks/task/partition_group.py", "PartitionGroup.add"),
    ("choose the next run of records", "tasks/loop/slices.py", "Slices.process"),
    ("decode", "tasks/processing/engine/source.py", "SourceNode.decode"),
    ("pass the batch through the nodes", "tasks/processing/engine/graph.py", "TaskGraph.run"),
    ("run an operator", "streams/operators/aggregate.py", "StreamCount.process"),
    ("read and change rows", "state_stores/buffers/commit_buffer.py", "CommitBuffer.mark_changed"),
    ("serialise outputs", "tasks/processing/engine/sink.py", "Sink.process"),
    ("stage outputs", "tasks/commit/output_collector.py", "OutputCollector.add"),
    ("decide when to commit", "tasks/commit/commit_schedule.py", "CommitSchedule.decide"),
    ("drain the stores", "tasks/commit/commit_round.py", "CommitRound.collect"),
    ("send the transaction", "tasks/commit/committer.py", "Committer.prepare"),
    ("write the database", "tasks/commit/commit_round.py", "CommitRound.complete"),
)


def application_states() -> str:
    return _states(_unnamed(application_state.MOVES))


def task_states() -> str:
    return _states(_unnamed(lifecycle.MOVES))


def task_phases() -> str:
    return _states(TASK_MOVES)


def member_phases() -> str:
    return _states(MEMBER_MOVES)


def record_path() -> str:
    names = [f"step{number}" for number in range(1, len(RECORD_PATH) + 1)]
    boxes = [
        f'    {name}["{text}<br>{file}"]'
        for name, (text, file, _) in zip(names, RECORD_PATH, strict=True)
    ]
    return _chart([*boxes, f"    {' --> '.join(names)}"])


def packages() -> str:
    """Return the layers of the import contracts: packages, folders, and clients of one folder."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = pyproject["tool"]["importlinter"]["contracts"]
    rooms = {
        _short(contract["containers"][0]): contract["layers"]
        for contract in contracts
        if contract["type"] == "rooms"
    }
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "packages")
    lines = [f'    {name}["{"<br>".join([name, *rooms[name]])}"]' for name in _PACKAGES]
    links = [
        f"    {above} --> {below}"
        for layer, next_layer in pairwise(layers)
        for above in _names(layer)
        for below in _names(next_layer)
    ]
    protected = [
        f"    {_short(importer).partition('.')[0]} -->|{_short(importer).rpartition('.')[2]}| {module}"
        for contract in contracts
        if contract["type"] == "protected" and len(contract["allowed_importers"]) == 1
        for importer in contract["allowed_importers"]
        for module in contract["protected_modules"][:1]
    ]
    return _chart([*lines, *links, *protected])


def _names(layer: str) -> list[str]:
    return [_short(name.strip()) for name in layer.split("|")]


def _short(module: str) -> str:
    return module.removeprefix("tidewheel.")


def _unnamed(moves: Mapping[_State, Iterable[_State]]) -> dict[_State, dict[_State, str]]:
    order = list(moves)
    return {old: dict.fromkeys(sorted(to, key=order.index), "") for old, to in moves.items()}


def _states(moves: Mapping[_State, Mapping[_State, str]]) -> str:
    return _chart(_arrows(moves))


def _arrows(moves: Mapping[_State, Mapping[_State, str]]) -> Iterator[str]:
    for old, to in moves.items():
        for new, label in to.items():
            yield f"    {old.value} -->{f'|{label}|' if label else ''} {new.value}"


def _chart(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "flowchart TB", *lines, "```"])
