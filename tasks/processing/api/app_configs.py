"""Application settings for processors: one flat mapping whose `repr` masks secrets."""

from collections.abc import Iterator, Mapping
from typing import Any, Self


class AppConfigs(Mapping[str, Any]):
    """The application's settings by name; a nested key is `consumer.fetch.min.bytes`.

    Args:
        shown: Replacements for secrets in `repr` and `str`.

    >>> configs = AppConfigs({"application_id": "shop", "consumer.sasl.password": "xyz"}, {"consumer.sasl.password": "***"})
    >>> configs["consumer.sasl.password"]
    'xyz'
    >>> configs.with_prefix("consumer.")
    AppConfigs({'sasl.password': '***'})
    """

    __slots__ = ("_shown", "_values")

    def __init__(
        self, values: Mapping[str, Any] | None = None, shown: Mapping[str, Any] | None = None
    ) -> None:
        self._values = dict(values or {})
        self._shown = dict(shown or {})

    def with_prefix(self, prefix: str) -> Self:
        """Return the settings whose names begin with a prefix; the result's names omit it."""
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise TypeError(
                f"app_configs_with_prefix takes a str, as in 'consumer.', not {type(prefix).__name__}"
            )

        def strip(table: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name.removeprefix(prefix): value
                for name, value in table.items()
                if name.startswith(prefix)
            }

        return type(self)(strip(self._values), strip(self._shown))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values | self._shown!r})"


NO_CONFIGS = AppConfigs()
