"""Pages of the API reference: every public name, with its docstring."""

from collections.abc import Sequence
from importlib import import_module
from typing import Final

import tidewheel

#: Page, title, and home modules of its names. The first that fits has a name.
_PAGES: Final[Sequence[tuple[str, str, tuple[str, ...]]]] = (
    ("errors", "Errors", ("tidewheel.streams.errors",)),
    (
        "streams-and-tables",
        "Streams and tables",
        ("tidewheel.streams.dsl.", "tidewheel.streams.definitions.retrying"),
    ),
    ("windows", "Windows", ("tidewheel.streams.windows", "tidewheel.streams.custom_windows")),
    ("serdes", "Serdes", ("tidewheel.streams.serdes",)),
    ("processors", "Processors and handlers", ("tidewheel.tasks.processing.",)),
    (
        "stores",
        "Stores",
        (
            "tidewheel.state_stores.",
            "tidewheel.streams.definitions.",
            "tidewheel.streams.group.key_metadata",
        ),
    ),
    ("running", "Running, settings and topologies", ("tidewheel.",)),
)
_MODULES: Final = {
    "testing": ("Testing", "tidewheel.testing"),
    "sinks": ("Sinks", "tidewheel.sinks"),
    "web": ("HTTP", "tidewheel.web"),
    "bulk": ("State in bulk", "tidewheel.bulk"),
}


def api_pages() -> dict[str, str]:
    """Return the pages by name, as Markdown with mkdocstrings' directives."""
    names: dict[str, list[str]] = {page: [] for page, _, _ in _PAGES}
    for name in tidewheel.__all__:
        home = getattr(tidewheel, "_HOME")[name]  # noqa: B009 - not for users
        names[next(page for page, _, homes in _PAGES if home.startswith(homes))].append(name)
    pages = {
        f"api/{page}.md": _page(
            title, "tidewheel", [(name, _home_of(tidewheel, name)) for name in names[page]]
        )
        for page, title, _ in _PAGES
    }
    for page, (title, module_name) in _MODULES.items():
        module = import_module(module_name)
        public = [(name, _home_of(module, name)) for name in module.__all__]
        pages[f"api/{page}.md"] = _page(title, module_name, public)
    return pages


def _home_of(module: object, name: str) -> str:
    """Return the path of a public name's definition."""
    value = getattr(module, name)
    return f"{value.__module__}.{value.__qualname__}"


def _page(title: str, module: str, names: Sequence[tuple[str, str]]) -> str:
    parts = [f"# {title}\n\nNames of `{module}`, in the order of the alphabet.\n"]
    for name, home in sorted(names):
        parts.append(
            f"## `{name}` {{ #{name.lower()} }}\n\n"
            f"::: {home}\n    options:\n      show_root_heading: false\n"
            "      show_root_toc_entry: false\n      heading_level: 3\n"
        )
    return "\n".join(parts)
