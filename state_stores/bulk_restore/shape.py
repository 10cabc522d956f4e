"""What of a store's settings its rows depend on, as a value that travels to other processes: no serde, no code."""

from typing import Any, NoReturn

import msgspec

from tidewheel.state_stores.spec import StoreKind, StoreSpec


class StoreShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `fold`, `RunBuilder` and `stored_rows` need of a store; the attributes are those of `StoreSpec`."""

    name: str
    kind: StoreKind
    retention_ms: int
    kept_longer_ms: int
    retain_duplicates: bool
    history_retention_ms: int
    ttl_ms: int | None

    @classmethod
    def of(cls, spec: StoreSpec) -> "StoreShape":
        """Return the shape of a store."""
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
        """Return a spec of this shape: rows can be made with it, but no key and no value can be read."""
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
    """Stands where a serde would be in a process that only moves bytes."""

    canonical = False

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - whatever it is
        """Return False."""
        return False

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("this process moves a store's bytes and was given none of its serdes")

    serialize = deserialize = serialize_batch = deserialize_batch = _refuse


_NO_SERDE = _NoSerde()
