"""User code in errors: the user's line that raised, and the frames of user code alone."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final, cast

from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError

#: Arguments of logging's `exc_info`.
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

#: Path of Tidewheel's frames. Not resolved: in the repository this folder is a link.
_PACKAGE: Final = f"{Path(__file__).parent.parent}/"
_LIBRARIES: Final = tuple(
    f"{folder}/" for folder in {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
)
_STANDARD: Final = f"{sysconfig.get_path('stdlib')}/"
#: Parts of a library that are the user's own program: one that is installed as a package.
_programs: set[str] = set()
#: Functions that Python compiles for parts of a function.
_INNER: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_CHAIN_MAX: Final = 20


def is_ours(path: str) -> bool:
    """Return True for a file of Tidewheel, or code without one: `<string>` is compiled by dataclasses."""
    return path == "<string>" or path.startswith((_PACKAGE, "<frozen ")) or path.endswith(".pyx")


def is_users(path: str) -> bool:
    if is_ours(path):
        return False
    if any(path.startswith(program) for program in _programs):
        return True
    return not path.startswith((*_LIBRARIES, _STANDARD))


def register_program(path: str) -> None:
    """Count an installed package as the user's, because it calls Tidewheel to build a topology."""
    for folder in _LIBRARIES:
        if path.startswith(folder):
            _programs.add(folder + path.removeprefix(folder).partition("/")[0])


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
    its text, which may quote a record.
    """
    source = _raised_by_users(error)
    if source is None:
        return None
    if not _is_encodable(source):
        return None  # files and JSON can't have this text
    shown = _without_text(source) if _is_in_serde(error, source) else source
    return (type(shown), shown, _users_trace(source))


def log_trace(error: BaseException) -> ExcInfo | None:
    """Return `exc_info` for a log line: frames of user code, or all of an unexpected error."""
    trace = user_trace(error)
    if isinstance(error, StreamsError):
        return trace
    if trace is not None and trace[1] is error and not _ends_in_ours(error):
        return trace
    return (type(error), error, error.__traceback__)


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


def _without_text(error: BaseException) -> BaseException:
    kind = type(error)
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    shown: type[Exception] = type(kind.__name__, (Exception,), members)
    return shown()


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
    return [f for f in _frames(error) if is_users(f.tb_frame.f_code.co_filename)]


def _raised_by_users(error: BaseException) -> BaseException | None:
    """Return the innermost error of a group, or the outermost of a chain, with user frames."""
    found = [link for link in _chain(error) if _users_frames(link)]
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
        frames = [f for f in _frames(link) if not is_ours(f.tb_frame.f_code.co_filename)]
        if frames:
            return frames[-1].tb_frame.f_code, frames[-1].tb_lineno
    return None


def _users_trace(error: BaseException) -> TracebackType | None:
    frames = list(_frames(error))
    first = frames.index(_users_frames(error)[0])
    trace: TracebackType | None = None
    for frame in reversed(frames[first:]):
        if not is_ours(frame.tb_frame.f_code.co_filename):
            trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _ends_in_ours(error: BaseException) -> bool:
    paths = [frame.tb_frame.f_code.co_filename for frame in _frames(error)]
    own = [path for path in paths if is_ours(path) or is_users(path)]
    return bool(own) and is_ours(own[-1])
