"""User code in errors: the user's line that raised, and the frames of user code alone."""

import dis
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Final, cast

from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError

#: Arguments of logging's `exc_info`.
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

#: Path of Tidewheel's frames. Not resolved: in the repository this folder is a link.
_PACKAGE: Final = f"{Path(__file__).parent.parent}/"
#: A package or module in a folder of installed libraries: of this environment, of the user, of the
#: system.
_LIBRARY: Final = re.compile(r".*?/(?:site|dist)-packages/[^/]+")
_STANDARD: Final = f"{sysconfig.get_path('stdlib')}/"
#: Parts of a library that are the user's own program: one that is installed as a package.
_programs: set[str] = set()
#: Functions that Python compiles for parts of a function.
_INNER: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_CHAIN_MAX: Final = 20


def is_ours(path: str) -> bool:
    """Return True for a file of Tidewheel, or code without one: `<string>` is compiled by dataclasses."""
    return path == "<string>" or path.startswith((_PACKAGE, "<frozen "))


def is_users(path: str) -> bool:
    if is_ours(path):
        return False
    library = _LIBRARY.match(path)
    if library is None:
        return not path.startswith(_STANDARD)
    return library.group() in _programs


def register_program(path: str) -> None:
    """Count an installed package as the user's, because it calls Tidewheel to build a topology."""
    library = _LIBRARY.match(path)
    if library is not None:
        _programs.add(library.group())


def path_of(frame: FrameType) -> str:
    """Return the file of a frame; of compiled code (`pyarrow/table.pxi`), that of its module."""
    path = frame.f_code.co_filename
    if path.startswith(("/", "<")):
        return path
    return str(frame.f_globals.get("__file__") or path)


def shown_path(path: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, a name such as <stdin>, or a missing directory
        return path


def place_of(error: BaseException, *, libraries: bool = False) -> str:
    """Return the user's line that raised an error, as "in pick() (shop.py:31)", or "".

    Args:
        libraries: Without a user's line, return the library's.

    >>> place_of(ValueError("never raised"))
    ''
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"({shown_path(error.filename)}:{error.lineno})"
    place = _place_of(error) or (_library_place_of(error) if libraries else None)
    if place is None:
        return ""
    code, line = place
    name = _shown_name(code)
    where = f"({shown_path(code.co_filename)}:{line})"
    return f"in {name} {where}" if name else where


def error_text(error: BaseException) -> str:
    """Return class and text of an error; the class alone without a text.

    >>> error_text(KeyError("cents")), error_text(TimeoutError())
    ("KeyError: 'cents'", 'TimeoutError')
    """
    text = message_of(error)
    name = type(error).__name__ if isinstance(error, StreamsError) else class_name(error)
    return f"{name}: {text}" if text.strip() else name


def located(error: BaseException, *, libraries: bool = False) -> str:
    """Return `error_text` with the user's line: "KeyError: 'cents', in pick() (shop.py:31)"."""
    text, place = error_text(error), place_of(error, libraries=libraries)
    if not place or place in text:
        return text
    return f"{text} {place}" if place.startswith("(") else f"{text}, {place}"


def cause_text(error: BaseException) -> str:
    """Return a Tidewheel error's message, which has its place; `located` for another error."""
    return (isinstance(error, StreamsError) and str(error)) or located(error)


def raised(error: BaseException) -> str:
    """Return an error's class and the user's line. Not its text, which may quote a record."""
    place = place_of(error)
    return f"raised {type(error).__name__}{' ' if place else ''}{place}"


def class_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def user_trace(error: BaseException) -> ExcInfo | None:
    """Return an error with the frames of user code alone, for `exc_info`; None without such frames.

    Frames of libraries stay where user code called them. An error inside a serde is shown without
    its text, which may quote a record. So are its causes.
    """
    source = _raised_by_users(error)
    if source is None:
        return None
    links = list(_links(source))
    if not all(map(_is_encodable, links)):
        return None  # files and JSON can't have this text
    if _is_in_serde(error, source):
        shown = _stand_in(source, "")
    elif any(map(_has_our_frames, links[1:])):
        shown = _shown(source)
    else:
        return (type(source), source, _users_trace(source))
    return (type(shown), shown, _users_trace(source))


def log_trace(error: BaseException) -> ExcInfo | None:
    """Return `exc_info` for a log line: frames of user code, or all of an unexpected error."""
    trace = user_trace(error)
    if isinstance(error, StreamsError):
        return trace
    if trace is not None and _raised_by_users(error) is error and not _ends_in_ours(error):
        return trace
    return (type(error), error, error.__traceback__)


def stopped_in(function: Callable[..., Any]) -> StopIteration:
    """Return the error of a function that ended an iteration of C code, which drops the original.

    Its frame is rebuilt: at the function's only line that can raise it, else at its first.
    """
    error = StopIteration()
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(
        inspect.getattr_static(type(function), "__call__", None), "__code__", None
    )
    if not isinstance(code, CodeType):
        return error
    line = _stopping_line(code)
    named = _raise.__code__.replace(
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=line,
    )
    try:
        FunctionType(named, {})(error)
    except StopIteration:
        trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        # At the first instruction: the others' columns are those of `_raise`.
        return error.with_traceback(TracebackType(None, trace.tb_next.tb_frame, 0, line))
    return error


def _raise(error: BaseException) -> None:
    raise error


def _stopping_line(code: CodeType) -> int:
    lines = {
        instruction.positions.lineno
        for instruction in dis.get_instructions(code)
        if instruction.argval in ("next", "StopIteration", "__next__")
        and instruction.positions is not None
        and instruction.positions.lineno is not None
    }
    return lines.pop() if len(lines) == 1 else code.co_firstlineno


def message_of(error: BaseException) -> str:
    """Return the text of an error, which may be a user's broken object."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the error is a user's object; reporting it must not hide it
        return "(its text can't be made)"
    if isinstance(error, BaseExceptionGroup):
        text += (
            f"; first: {error_text(cast('BaseExceptionGroup[BaseException]', error).exceptions[0])}"
        )
    # Texts may quote lone surrogates, which UTF-8 can't encode.
    return text.encode(errors="backslashreplace").decode()


def _is_encodable(error: BaseException) -> bool:
    try:
        str(error).encode()
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _is_in_serde(error: BaseException, source: BaseException) -> bool:
    for link in _chain(error):
        if link is source:
            return False
        if isinstance(link, SerdeError | StoredRowError):
            return True
    return False


def _stand_in(error: BaseException, text: str) -> BaseException:
    """Return an error of the same name with another text, and without causes."""
    kind = type(error)
    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__str__": lambda _self: text,
    }
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        parts = [_shown(part) for part in group.exceptions]
        shown: BaseException = type(kind.__name__, (BaseExceptionGroup,), members)(text, parts)
    else:
        shown = type(kind.__name__, (Exception,), members)()
    for hint in getattr(error, "__notes__", ()) if text else ():
        shown.add_note(hint)
    return shown


def _shown(error: BaseException, *, has_text: bool = True, depth: int = 0) -> BaseException:
    """Return a stand-in for an error and its causes, without frames of Tidewheel."""
    shown = _stand_in(error, message_of(error) if has_text else "")
    shown = shown.with_traceback(_without_ours(_frames(error)))
    has_text = has_text and not isinstance(error, SerdeError | StoredRowError)
    below = _below(error)
    while below is not None and not _is_shown(below):
        has_text = has_text and not isinstance(below, SerdeError | StoredRowError)
        below = _below(below)
    if below is not None and depth < _CHAIN_MAX:
        cause = _shown(below, has_text=has_text, depth=depth + 1)
        if error.__cause__ is None:
            shown.__context__ = cause
        else:
            shown.__cause__ = cause
    return shown


def _is_shown(error: BaseException) -> bool:
    """Return False if only frames of Tidewheel raised this error."""
    return error.__traceback__ is None or _without_ours(_frames(error)) is not None


def _below(error: BaseException) -> BaseException | None:
    """Return the cause or context that a traceback shows."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _links(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that its traceback shows, parts of groups too."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _CHAIN_MAX:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", link).exceptions)
        below = _below(link)
        if below is not None:
            waiting.append(below)


def _has_our_frames(error: BaseException) -> bool:
    return any(is_ours(path_of(frame.tb_frame)) for frame in _frames(error))


def _shown_name(code: CodeType) -> str:
    name = code.co_qualname
    while name.endswith(_INNER):
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    name = name.rpartition("<locals>.")[2]
    if name == "<lambda>":
        return "a lambda"
    return "" if name == "<module>" or not name else f"{name}()"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: the first of a group, else the explicit cause."""
    current: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if current is None:
            return
        yield current
        if isinstance(current, BaseExceptionGroup):
            current = cast("BaseExceptionGroup[BaseException]", current).exceptions[0]
        else:
            current = current.__cause__


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _users_frames(error: BaseException) -> list[TracebackType]:
    return [f for f in _frames(error) if is_users(path_of(f.tb_frame))]


def _raised_by_users(error: BaseException) -> BaseException | None:
    """Return the innermost error of a group, or the outermost of a chain, with user frames."""
    found = [link for link in _chain(error) if _users_frames(link)]
    if (
        len(found) > 1
        and isinstance(found[0], RuntimeError)
        and isinstance(found[1], StopIteration)
    ):
        return found[1]  # Python replaces it where it leaves a generator or coroutine
    groups = [link for link in found if not isinstance(link, BaseExceptionGroup)]
    return next(iter(groups or found), None)


def _place_of(error: BaseException) -> tuple[CodeType, int] | None:
    source = _raised_by_users(error)
    if source is None:
        return None
    frame = _users_frames(source)[-1]
    return frame.tb_frame.f_code, frame.tb_lineno


def _library_place_of(error: BaseException) -> tuple[CodeType, int] | None:
    for link in _chain(error):
        frames = [f for f in _frames(link) if not is_ours(path_of(f.tb_frame))]
        if frames:
            return frames[-1].tb_frame.f_code, frames[-1].tb_lineno
    return None


def _users_trace(error: BaseException) -> TracebackType | None:
    frames = list(_frames(error))
    return _without_ours(frames[frames.index(_users_frames(error)[0]) :])


def _without_ours(frames: Iterable[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for frame in reversed(list(frames)):
        if not is_ours(path_of(frame.tb_frame)):
            trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _ends_in_ours(error: BaseException) -> bool:
    paths = [path_of(frame.tb_frame) for frame in _frames(error)]
    own = [path for path in paths if is_ours(path) or is_users(path)]
    return bool(own) and is_ours(own[-1])
