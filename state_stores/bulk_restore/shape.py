"""Store settings that rows depend on, for other processes; without serdes and code."""

from typing import Any, NoReturn

import msgspec

from tidewheel.state_stores.spec import StoreKind, StoreSpec


class StoreShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: StoreKind
    retention_ms: int
    kept_longer_ms: int
    retain_duplicates: bool
    history_retention_ms: int
    ttl_ms: int | None

    @classmethod
    def of(cls, spec: StoreSpec) -> "StoreShape":
        return cls(
            name=spec.name,
            kind=spec.kind,
            retention_ms=spec.retention_ms,
            kept_longer_ms=spec.kept_longer_ms,
            retain_duplicates=spec.retain_duplicates,
            history_retention_ms=spec.history_retention_ms,
            ttl_ms=spec.ttl_ms,
        )

    def spec(self) -> StoreSpec:
        return StoreSpec(
            name=self.name,
            kind=self.kind,
            key_serde=_NO_SERDE,
            value_serde=_NO_SERDE,
            retention_ms=self.retention_ms,
            kept_longer_ms=self.kept_longer_ms,
            retain_duplicates=self.retain_duplicates,
            history_retention_ms=self.history_retention_ms,
            ttl_ms=self.ttl_ms,
        )


class _NoSerde:
    canonical = False

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - any value
        return False

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("this process only moves a store's bytes and has no serdes")

    serialize = deserialize = serialize_batch = deserialize_batch = _refuse


_NO_SERDE = _NoSerde()
