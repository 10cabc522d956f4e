"""Settings: `StreamsConfig`, where its values come from, and how secrets stay secret."""

from streams.config.display import OptionRow
from streams.config.importable import import_object, importable_name
from streams.config.options import StreamsOptions
from streams.config.secrets import redacted, redacted_url, resolve_secrets
from streams.config.streams_config import StreamsConfig, default_state_dir

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
