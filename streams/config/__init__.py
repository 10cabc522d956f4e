"""Settings: `StreamsConfig`, its sources, and secrets.

Names are imported at first use: helper processes need secrets, but not pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidewheel.streams.config.display import OptionRow
    from tidewheel.streams.config.names import import_object, importable_name
    from tidewheel.streams.config.options import StreamsOptions
    from tidewheel.streams.config.secrets import redacted, resolve_secrets
    from tidewheel.streams.config.streams_config import StreamsConfig, default_state_dir

__all__ = [
    "OptionRow",
    "StreamsConfig",
    "StreamsOptions",
    "default_state_dir",
    "import_object",
    "importable_name",
    "redacted",
    "resolve_secrets",
]

#: Module of each name in `__all__`.
_HOMES = {
    "OptionRow": "display",
    "StreamsConfig": "streams_config",
    "StreamsOptions": "options",
    "default_state_dir": "streams_config",
    "import_object": "names",
    "importable_name": "names",
    "redacted": "secrets",
    "resolve_secrets": "secrets",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
