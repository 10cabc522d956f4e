"""Settings: `StreamsConfig`, where its values come from, and how secrets stay secret.

Names are imported when they are first used: helper processes need secrets, and not the library that checks settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidewheel.streams.config.display import OptionRow
    from tidewheel.streams.config.names import import_object, importable_name
    from tidewheel.streams.config.options import StreamsOptions
    from tidewheel.streams.config.secrets import redacted, redacted_url, resolve_secrets
    from tidewheel.streams.config.streams_config import StreamsConfig, default_state_dir

__all__ = [
    "OptionRow",
    "StreamsConfig",
    "StreamsOptions",
    "default_state_dir",
    "import_object",
    "importable_name",
    "redacted",
    "redacted_url",
    "resolve_secrets",
]

#: Where each name of `__all__` is defined, below this package.
_HOMES = {
    "OptionRow": "display",
    "StreamsConfig": "streams_config",
    "StreamsOptions": "options",
    "default_state_dir": "streams_config",
    "import_object": "importable",
    "importable_name": "importable",
    "redacted": "secrets",
    "redacted_url": "secrets",
    "resolve_secrets": "secrets",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found
