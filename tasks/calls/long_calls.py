"""Long calls of user code: finds a thread's current call and its record.

Nothing is written per record.
"""

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final, NamedTuple, TypeGuard

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.user_code import shown_path
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.graph import Node
from tidewheel.tasks.processing.engine.operator import Operator
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.source import SourceNode

#: Not resolved: stack frames show the path through the repository's symbolic links.
_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = f"{_ROOT}/"
#: Our modules that call user functions. If a stack ends in one of them, the user function has no
#: Python frame: it is written in C, or it awaits.
_CALLERS: Final = tuple(
    f"{_ROOT / name}"
    for name in (
        "streams/operators/",
        "streams/serdes/",
        "streams/user_functions.py",
        "streams/definitions/retrying.py",
        "tasks/processing/",
        "tasks/key_ranges/shared_loop.py",
    )
)
#: Ignored frames: user code and this project both call the standard library.
_LIBRARIES: Final = (
    *{f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib")},
    "<frozen ",
    "<string>",
)
_PACKAGES: Final = ("confluent_kafka", "msgspec", "rocksdict")
_SITE: Final = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib")})


class UserCall(NamedTuple):
    """Call of a user's function.

    Attributes:
        function: Name and current line: "enrich (app.py:12)".
        node, task: Name of the calling node, and its task; empty if unknown.
        record: Input record of the call; None for none (init, a punctuation) or several.
        records: First and last record of its batch; None without one.
        key: If equal at two checks, the thread is most probably still in the same call.
    """

    function: str
    node: str
    task: str
    record: RecordMetadata | None
    records: tuple[RecordMetadata, RecordMetadata] | None
    key: tuple[object, ...]

    @property
    def text(self) -> str:
        where = f" at {self.node}" if self.node else ""
        where += f" (task {self.task})" if self.task else ""
        return f"{self.function}{where}, {self._place}"

    @property
    def text_so_far(self) -> str:
        if self.record is None or self.records is None:
            return self.text
        return self._replace(record=None, records=(self.records[0], self.record)).text

    @property
    def _place(self) -> str:
        if self.record is not None:
            return f"{self.record.topic}-{self.record.partition} offset {self.record.offset}"
        if self.records is not None:
            first, last = self.records
            return f"a record of {first.topic}-{first.partition} from offset {first.offset} to {last.offset}"
        return "without an input record (init, close, a punctuation or a listener)"


def call_of(thread: int) -> UserCall | None:
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # there is no other way
    innermost = frames.get(thread)
    del frames
    return None if innermost is None else find_call(innermost)


def find_call(innermost: FrameType) -> UserCall | None:
    stack = [frame for frame in _outwards(innermost) if not _is_library(frame.f_code)]
    if stack and stack[0].f_code.co_filename.startswith(_CALLERS):
        return _described(_without_frame(stack), stack, ())
    begin = next((place for place, frame in enumerate(stack) if not _is_ours(frame)), None)
    if begin is None:
        return None
    # Nested user functions belong to the call.
    end = next((place for place in range(begin, len(stack)) if _is_ours(stack[place])), len(stack))
    innermost, outermost = stack[begin], stack[end - 1]
    function = _text(outermost)
    if innermost is not outermost:
        function += f", now in {_text(innermost)}"
    return _described(
        function,
        stack[end:],
        [value for frame in stack[begin:end] for value in frame.f_locals.values()],
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_library(code: CodeType) -> bool:
    path = code.co_filename
    for site in _SITE:  # site-packages is inside the standard library's directory
        if path.startswith(site):
            return path.removeprefix(site).startswith(_PACKAGES)
    return path.startswith(_LIBRARIES)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _text(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({shown_path(code.co_filename)}:{frame.f_lineno})"


def _without_frame(stack: Sequence[FrameType]) -> str:
    for frame in stack:
        if not _is_ours(frame):
            break
        variables = frame.f_locals
        coroutine = variables.get("coroutine")
        if _is_coroutine(coroutine):
            return _awaiting(coroutine)
        for name in ("function", "joiner"):
            text = getattr(variables.get(name), "shown", None)
            if isinstance(text, str):
                return text
    return "a function written in C"


def _is_coroutine(value: object) -> "TypeGuard[CoroutineType[Any, Any, Any]]":
    return isinstance(value, CoroutineType)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_set(value: object) -> TypeGuard[set[Any]]:
    return isinstance(value, set)


def _awaiting(coroutine: "CoroutineType[Any, Any, Any]") -> str:
    text = coroutine.__qualname__
    inner: Any = coroutine
    while _is_coroutine(inner):
        frame: FrameType | None = inner.cr_frame
        if frame is not None and not _is_ours(frame) and not _is_library(frame.f_code):
            text = _text(frame)
        inner = inner.cr_await
    return text


def _described(function: str, ours: Sequence[FrameType], arguments: Sequence[object]) -> UserCall:
    node = task = ""
    record: RecordMetadata | None = None
    records: tuple[RecordMetadata, RecordMetadata] | None = None
    batch = 0
    for frame in filter(_is_ours, ours):
        variables = frame.f_locals
        node = node or _node_of(variables)
        task = task or _task_of(variables)
        if record is None and records is None:
            index = _index_in(variables)
            columns = _columns_in(variables)
            if columns is not None and len(columns):
                batch = id(columns)
                record, records = _record_in(columns, index, arguments)
        if node and task and (record is not None or records is not None):
            break
    called = function.partition(" (")[0]  # without the line, which changes during the call
    return UserCall(function, node, task, record, records, (called, node, task, batch, record))


def _node_of(variables: dict[str, Any]) -> str:
    for name in ("operator", "self"):
        node = variables.get(name)
        if isinstance(node, Operator) and hasattr(node, "context"):
            return node.context.node_name
        if isinstance(node, SourceNode):
            return node.spec.name
    node = variables.get("node")
    return node.name if isinstance(node, Node) else ""


def _task_of(variables: dict[str, Any]) -> str:
    for name in ("operator", "self"):
        owner = variables.get(name)
        if isinstance(owner, Operator) and hasattr(owner, "context"):
            return owner.context.task_id
        task = getattr(owner, "task_id", "")
        if isinstance(task, str | TaskId) and str(task):
            return str(task)
    return ""


def _columns_in(variables: dict[str, Any]) -> RecordBatch | SourceRecords | None:
    for name in ("batch", "records"):
        columns = variables.get(name)
        if isinstance(columns, RecordBatch | SourceRecords):
            return columns
    return None


def _index_in(variables: dict[str, Any]) -> int | None:
    """Return the batch index of the current record, by variable names of our loops."""
    results, failed = variables.get("results"), variables.get("failed")
    if _is_list(results) and _is_list(failed):
        return len(results) + len(failed)
    left_out, indices = variables.get("left_out"), variables.get("indices")
    if _is_list(results) and _is_set(left_out) and _is_list(indices):
        place = len(results) + len(left_out)
        return indices[place] if place < len(indices) else None
    for name in ("index", "row"):
        index = variables.get(name)
        if isinstance(index, int):
            return index
    return None


def _record_in(
    columns: RecordBatch | SourceRecords, index: int | None, arguments: Sequence[object]
) -> tuple[RecordMetadata | None, tuple[RecordMetadata, RecordMetadata] | None]:
    source = columns.source if isinstance(columns, RecordBatch) else columns
    if source is None or not len(source):
        return None, None
    rows = columns.rows if isinstance(columns, RecordBatch) else range(len(columns))
    among = (source.metadata(rows[0]), source.metadata(rows[-1]))
    if index is None:
        index = _index_of_argument(columns, arguments)
    if index is not None and 0 <= index < len(rows):
        return source.metadata(rows[index]), among
    return (among[0] if len(rows) == 1 else None), among


def _index_of_argument(
    columns: RecordBatch | SourceRecords, arguments: Sequence[object]
) -> int | None:
    """Return the index of the only record whose key or value is an argument, if any."""
    argument_ids = {id(argument) for argument in arguments if argument is not None}
    by_column = (
        (columns.values, columns.keys)
        if isinstance(columns, RecordBatch)
        else (columns.raw_values, columns.raw_keys)
    )
    for column in by_column:
        places = [place for place, argument in enumerate(column) if id(argument) in argument_ids]
        if len(places) == 1:
            return places[0]
    return None
