"""Settings as one flat table, for processors."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from tidewheel.streams.config.display import displayed
from tidewheel.streams.config.sources import CLIENTS, TABLES
from tidewheel.streams.config.streams_config import StreamsConfig
from tidewheel.tasks.processing.api.app_configs import AppConfigs


def app_configs(config: StreamsConfig) -> AppConfigs:
    """Return all options in one flat mapping; a table's keys follow its name and a dot.

    >>> config = StreamsConfig(application_id="shop", consumer={"sasl.password": "xyz", "fetch.min.bytes": 1})
    >>> configs = app_configs(config)
    >>> configs["application_id"], configs["consumer.sasl.password"], configs["rocksdb.block_cache_bytes"]
    ('shop', 'xyz', 67108864)
    >>> configs.with_prefix("consumer.")
    AppConfigs({'sasl.password': '***', 'fetch.min.bytes': 1})
    """
    values: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for option in type(config).model_fields:
        value = getattr(config, option)
        may_show = displayed(option, value)
        if option in TABLES:
            for key, item in _table(value).items():
                values[f"{option}.{key}"] = item
                if option in CLIENTS:
                    shown[f"{option}.{key}"] = may_show[key]
        else:
            values[option], shown[option] = value, may_show
    return AppConfigs(values, shown)


def _table(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
