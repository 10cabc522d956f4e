"""Operators without state: filter, map, split, merge and others.

Each makes one pass over a batch's columns. A user function is called once for a record.
"""

from asyncio import Task
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from types import CoroutineType
from typing import Any, TypeGuard

import msgspec

from tidewheel.streams.user_functions import UserFunction, stopped
from tidewheel.tasks.processing.api.call_window import CallWindow, Outcome
from tidewheel.tasks.processing.api.coroutines import answering
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, first_none, has_none
from tidewheel.tasks.processing.engine.steps import Steps


def call_each(
    operator: Operator, function: UserFunction, batch: RecordBatch
) -> tuple[list[Any], list[int] | None]:
    """Call a user function for every record; return the results and their records' indices.

    Indices None means all records. Failed records go to the processing exception handler.
    """
    results, kept_indices = collect_each(operator, function, _calls(function, batch), batch)
    if CoroutineType in set(map(type, results)):
        return _without_coroutines(operator, function.name, results, batch, kept_indices)
    return results, kept_indices


def collect_each(
    operator: Operator, function: UserFunction, calls: Iterator[Any], batch: RecordBatch
) -> tuple[list[Any], list[int] | None]:
    """Collect results of an iterator that makes one call of the function per record."""
    results: list[Any] = []
    failed: list[int] = []
    while True:
        error: Exception | None = None
        try:
            results.extend(calls)
        except FAILURES as raised:
            error = raised
        # Results so far plus failures give the index of the record whose call failed.
        index = len(results) + len(failed)
        if error is None:
            if index == len(batch):
                break
            # An escaped StopIteration would otherwise end the batch unnoticed.
            error = stopped(function)
        operator.context.failed(batch, index, error)
        failed.append(index)
    if not failed:
        return results, None
    left_out = set(failed)
    return results, [index for index in range(len(batch)) if index not in left_out]


def _without_coroutines(
    operator: Operator,
    name: str,
    results: list[Any],
    batch: RecordBatch,
    kept_indices: list[int] | None,
) -> tuple[list[Any], list[int]]:
    hints = [_hint(result) for result in results]
    good: list[Any] = []
    left: list[int] = []
    indices = range(len(batch)) if kept_indices is None else kept_indices
    for index, result, hint in zip(indices, results, hints, strict=True):
        if hint:
            operator.context.failed(batch, index, TypeError(f"{name} returned a coroutine{hint}"))
        else:
            good.append(result)
            left.append(index)
    return good, left


def _calls(function: UserFunction, batch: RecordBatch) -> Iterator[Any]:
    return (
        map(function.call, batch.keys, batch.values)
        if function.takes_key
        else map(function.call, batch.values)
    )


def _called(
    operator: Operator, function: UserFunction, batch: RecordBatch
) -> tuple[list[Any], RecordBatch]:
    results, kept_indices = call_each(operator, function, batch)
    return results, batch if kept_indices is None else batch.take(kept_indices)


class StatelessOperator(Operator):
    """An operator whose task may be split by key hash (into key ranges)."""

    needs_whole_task = ""
    takes_joint = True
    is_stateless = True


class CallingOperator(StatelessOperator):
    """An operator that calls one user function for each record."""

    _function: UserFunction
    _window: CallWindow | None = None
    _rows: Sequence[int] = ()

    def awaits(self) -> bool:
        return self._function.awaiting is not None

    def blocks(self) -> bool:
        return self._function.awaiting is None

    def overlaps_calls(self) -> bool:
        return self.awaits()

    def awaited_row(self) -> int | None:
        window = self._window
        oldest = None if window is None else window.oldest
        return None if oldest is None else self._rows[oldest]

    def has_call(self, task: Task[Any]) -> bool:
        return self._window is not None and self._window.has(task)

    def steps(self, batch: RecordBatch) -> Steps[Output]:
        outcomes: list[Outcome]
        if self.call_places is None:
            outcomes = []
            for index in range(len(batch)):
                outcomes.append((yield from self._outcome(batch, index)))
        else:
            self._rows = batch.rows
            self._window = CallWindow(
                partial(self._begin, batch), _raw_keys(batch), self.call_places
            )
            try:
                outcomes = yield self._window.run()
            finally:
                self._window = None
        results: list[Any] = []
        kept: list[int] = []
        for index, (result, error) in enumerate(outcomes):
            if isinstance(error, FAILURES):
                self.context.failed(batch, index, error)
            elif error is not None:
                raise error
            else:
                results.append(result)
                kept.append(index)
        if not kept:
            return None
        with answering(results):
            return self.process(batch if len(kept) == len(batch) else batch.take(kept))

    def _outcome(self, batch: RecordBatch, index: int) -> Steps[Outcome]:
        try:
            return (yield self._begin(batch, index)), None
        except FAILURES as error:
            return None, error

    def _begin(self, batch: RecordBatch, index: int) -> Coroutine[Any, Any, Any]:
        awaiting, value = self._function.awaiting, batch.values[index]
        assert awaiting is not None, "steps are those of a coroutine function"
        return (
            awaiting.begin(batch.keys[index], value)
            if self._function.takes_key
            else awaiting.begin(value)
        )


def _raw_keys(batch: RecordBatch) -> Sequence[bytes | None]:
    """Return the records' keys in their topic; equal ones if unknown, which keeps all in order."""
    if batch.source is None:
        return [b""] * len(batch)
    return list(map(batch.source.raw_keys.__getitem__, batch.rows))


class PassThrough(StatelessOperator):
    keeps_times = True

    def blocks(self) -> bool:
        return False

    def process(self, batch: RecordBatch) -> Output:
        return batch


class Filter(CallingOperator):
    def __init__(self, predicate: UserFunction, negate: bool = False) -> None:
        self._function = deciding(predicate)
        self._negate = negate

    def process(self, batch: RecordBatch) -> Output:
        flags, batch = _called(self, self._function, batch)
        if self._negate:
            flags = [not flag for flag in flags]
        return batch.select(flags)


class DropNullKeys(StatelessOperator):
    def blocks(self) -> bool:
        return False

    def process(self, batch: RecordBatch) -> Output:
        if not has_none(batch.keys):
            return batch
        remaining = batch.select([key is not None for key in batch.keys])
        self.context.dropped(
            len(batch) - len(remaining),
            "null key before a repartition",
            batch,
            first_none(batch.keys),
        )
        return remaining


class Map(CallingOperator):
    keys_out = "any"
    keeps_times = True

    def __init__(self, function: UserFunction) -> None:
        self._function = _paired(function)

    def process(self, batch: RecordBatch) -> Output:
        pairs, batch = _called(self, self._function, batch)
        return batch.with_keys([key for key, _ in pairs], [value for _, value in pairs])


class MapValues(CallingOperator):
    keeps_times = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: RecordBatch) -> Output:
        values, batch = _called(self, self._function, batch)
        return batch.with_values(values)


class MapValuesBatch(StatelessOperator):
    keeps_times = True
    calls_batches = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def awaits(self) -> bool:
        return self._function.awaiting is not None

    def blocks(self) -> bool:
        return self._function.awaiting is None

    def argument(self, batch: RecordBatch) -> Any:
        """Return the argument of the function's call."""
        return list(batch.values)

    def values_of(self, result: Any, batch: RecordBatch) -> list[Any]:
        """Return the values in the function's result; raise if they don't fit the batch."""
        values = _collected(result, self._function)
        if len(values) != len(batch):
            raise ValueError(
                f"{self._function.shown} returned {len(values)} values for {len(batch)}; return one for each, in the "
                "same order"
            )
        return values

    def process(self, batch: RecordBatch) -> Output:
        try:
            result = self._function.call(self.argument(batch))
            return batch.with_values(self.values_of(result, batch))
        except FAILURES as error:
            return self._failed(batch, error)

    def steps(self, batch: RecordBatch) -> Steps[Output]:
        awaiting = self._function.awaiting
        assert awaiting is not None, "steps are those of a coroutine function"
        try:
            result = yield awaiting.begin(self.argument(batch))
            return batch.with_values(self.values_of(result, batch))
        except FAILURES as error:
            return self._failed(batch, error)

    def _failed(self, batch: RecordBatch, error: Exception) -> Output:
        for index in range(len(batch)):
            self.context.failed(batch, index, error)
        return None


class SelectKey(CallingOperator):
    keys_out = "any"
    keeps_times = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: RecordBatch) -> Output:
        keys, batch = _called(self, self._function, batch)
        return batch.with_keys(keys)


class FlatMap(CallingOperator):
    keys_out = "any"
    expands = True

    def __init__(self, function: UserFunction) -> None:
        self._function = _listed(function, _pairs)

    def process(self, batch: RecordBatch) -> Output:
        lists, batch = _called(self, self._function, batch)
        pairs = list(chain.from_iterable(lists))
        return spread(batch, lists).with_keys(
            [key for key, _ in pairs], [value for _, value in pairs]
        )


class FlatMapValues(CallingOperator):
    expands = True

    def __init__(self, function: UserFunction) -> None:
        self._function = _listed(function, list)

    def process(self, batch: RecordBatch) -> Output:
        lists, batch = _called(self, self._function, batch)
        return spread(batch, lists).with_values(list(chain.from_iterable(lists)))


class Peek(CallingOperator):
    keeps_times = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: RecordBatch) -> Output:
        return _called(self, self._function, batch)[1]


class Foreach(CallingOperator):
    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: RecordBatch) -> Output:
        call_each(self, self._function, batch)
        return None


class Branch(StatelessOperator):
    exclusive = True

    def __init__(self, branches: Sequence[tuple[UserFunction, str]], default: str | None) -> None:
        self._branches = [(deciding(predicate), child) for predicate, child in branches]
        self._default = default

    def process(self, batch: RecordBatch) -> Output:
        outputs: dict[str, RecordBatch] = {}
        rest = batch
        for predicate, child in self._branches:
            if not len(rest):
                return outputs
            flags, rest = _called(self, predicate, rest)
            outputs[child] = rest.select(flags)
            rest = rest.select([not flag for flag in flags])
        if self._default is not None:
            outputs[self._default] = rest
        return outputs


class ToStream(StatelessOperator):
    keeps_times = True

    def blocks(self) -> bool:
        return False

    def process(self, batch: RecordBatch) -> Output:
        if batch.old_values is None and batch.latest is None:
            return batch
        stream = batch.with_values(batch.values)
        stream.latest = None  # This flag describes table rows, not stream records.
        return stream


def spread(batch: RecordBatch, lists: Sequence[Sequence[Any]]) -> RecordBatch:
    return repeated(batch, [len(items) for items in lists])


def repeated(batch: RecordBatch, counts: Sequence[int]) -> RecordBatch:
    """Return each record `counts[i]` times."""
    if batch.order is None and counts.count(1) == len(counts):
        return batch
    indices = list(chain.from_iterable(map(repeat, range(len(batch)), counts)))
    output = batch.take(indices)
    if output.order is not None:
        positions = chain.from_iterable(range(count) for count in counts)
        output.order = [
            (*order, position) for order, position in zip(output.order, positions, strict=True)
        ]
    return output


def _collected(result: Any, function: UserFunction) -> list[Any]:
    try:
        values: Iterator[Any] = iter(result)
    except TypeError:
        raise TypeError(
            f"{function.shown} returned no values but {type(result).__name__}{_hint(result)}; return a list, one value for each"
        ) from None
    return list(values)


def _is_coroutine(result: object) -> "TypeGuard[CoroutineType[Any, Any, Any]]":
    return isinstance(result, CoroutineType)


def _hint(result: object) -> str:
    """Close a coroutine; return a hint for the error message."""
    if not _is_coroutine(result):
        return ""
    result.close()
    return " (give the coroutine function itself)"


def deciding(predicate: UserFunction) -> UserFunction:
    """Convert a predicate's result to bool inside the call: an error then belongs to its record."""
    call = predicate.call

    def decided(*record: Any) -> bool:
        flag: object = call(*record)
        if flag is True or flag is False:
            return flag
        if _is_coroutine(flag):
            raise TypeError(f"{predicate.shown} returned a coroutine, not a bool{_hint(flag)}")
        return bool(flag)

    return msgspec.structs.replace(predicate, call=decided)


def _paired(function: UserFunction) -> UserFunction:
    """Check a mapper's (key, value) inside the call: an error then belongs to its record."""
    call = function.call

    def paired(*record: Any) -> tuple[Any, Any]:
        return _pair(call(*record), function)

    return msgspec.structs.replace(function, call=paired)


def paired_or_none(function: UserFunction) -> UserFunction:
    """Wrap a mapper like `_paired`, but accept None as its result."""
    call = function.call

    def paired(*record: Any) -> tuple[Any, Any] | None:
        result = call(*record)
        return None if result is None else _pair(result, function)

    return msgspec.structs.replace(function, call=paired)


def _pair(result: Any, function: UserFunction) -> tuple[Any, Any]:
    try:
        if isinstance(result, str | bytes):
            raise TypeError  # noqa: TRY301 - a text of two characters is no pair
        key, value = result
    except (TypeError, ValueError):
        raise TypeError(
            f"{function.shown} must return (key, value), not {type(result).__name__}{_hint(result)}"
        ) from None
    return key, value


def _listed(function: UserFunction, collect: Callable[..., list[Any]]) -> UserFunction:
    """Consume the result inside the call: a generator's error then belongs to its record."""
    call = function.call

    def listed(*record: Any) -> list[Any]:
        result: Any = call(*record)
        if result is None or isinstance(result, str | bytes) or _is_coroutine(result):
            raise no_results(result)
        try:
            return collect(result, function) if collect is _pairs else collect(result)
        except TypeError:
            if isinstance(result, Iterable) or hasattr(result, "__getitem__"):
                raise
            raise no_results(result) from None

    def no_results(result: object) -> TypeError:
        return TypeError(
            f"{function.shown} must return an iterable of results, not {type(result).__name__}{_hint(result)}; return a "
            "list, [] for none"
        )

    return msgspec.structs.replace(function, call=listed)


def _pairs(result: Any, function: UserFunction) -> list[Any]:
    return [_pair(item, function) for item in result]
