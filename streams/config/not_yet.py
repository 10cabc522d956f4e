"""Options that are accepted and checked ahead of the features they belong to; setting one is said to have no effect."""

from typing import Final

#: Options that are checked and kept, but that nothing reads yet: option -> what they come with. A test compares this with the code.
NOT_YET: Final = {
    "snapshot_location": "snapshots and bulk restore",
}
