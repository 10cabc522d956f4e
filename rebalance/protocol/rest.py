"""Rest: an order to all members to take no external input, and to finish the work in between."""

import msgspec

from tidewheel.rebalance.protocol.field_types import Epoch, Positions


class Rest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Members finish internal topics meanwhile; a task confirms the epoch in its status."""

    epoch: Epoch  # Leader epoch of the step that wrote it.
    #: Offsets up to which partitions of external inputs are read: their shards and key ranges
    #: become level there. Without one, a task stops where it is.
    until: Positions = {}
