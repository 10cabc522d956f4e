"""Tables of all public errors and of all exit codes, from the classes and their docstrings."""

import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

from tidewheel import StreamsError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of_class

_MODULES: Final = (
    "tidewheel",
    "tidewheel.sinks",
    "tidewheel.web",
    "tidewheel.bulk",
    "tidewheel.testing",
)
_STEP: Final = "\n\nNext step:\n"


def public_errors() -> dict[str, type[BaseException]]:
    """Return all public exception classes by name; those below `tidewheel` have their module's."""
    return {
        f"{module}.{name}".removeprefix("tidewheel."): value
        for module in _MODULES
        for name in import_module(module).__all__
        if inspect.isclass(value := getattr(import_module(module), name))
        and issubclass(value, BaseException)
    }


def errors_table() -> str:
    names = {kind: name for name, kind in public_errors().items()}
    rows = [
        (
            f"`{name}`",
            *_explained(kind, _base(kind, names)),
            _shown_code(exit_code_of_class(kind)),
        )
        for kind, name in names.items()
    ]
    return _table(("error", "meaning", "next step", "exit code"), sorted(rows))


def exit_codes_table() -> str:
    codes = {name: exit_code_of_class(kind) for name, kind in public_errors().items()}
    rows = [
        (
            f"{code.value}",
            code.meaning,
            "all others"
            if code is ExitCode.FAILED
            else ", ".join(f"`{name}`" for name, of_error in codes.items() if of_error is code),
        )
        for code in ExitCode
    ]
    return _table(("code", "meaning", "errors"), rows)


def _shown_code(code: ExitCode) -> str:
    return f"{code.value}, never restarted" if code.is_final else f"{code.value}"


def _base(kind: type[BaseException], names: dict[type[BaseException], str]) -> str:
    """Return the nearest public base class, except the root."""
    bases = [base for base in kind.__mro__[1:] if base in names and base is not StreamsError]
    return names[bases[0]] if bases else ""


def _explained(kind: type[BaseException], base: str) -> tuple[str, str]:
    """Return the docstring's text up to "Next step", with the base class, and the step.

    Raises:
        ValueError: The docstring has no next step.
    """
    means, found, rest = (inspect.getdoc(kind) or "").partition(_STEP)
    if not found:
        raise ValueError(f"the docstring of {kind.__qualname__} has no part 'Next step:'; add it")
    of_base = f" A `{base}`." if base else ""
    return " ".join(means.split()) + of_base, " ".join(rest.partition("\n\n")[0].split())


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
