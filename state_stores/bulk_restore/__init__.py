"""State in bulk: sorted runs of a changelog, snapshots of them, and what a store is restored from.

A *run* is one sorted file: the last value per disk key of one stretch of one changelog partition. Ingesting runs in the
order of their offsets is the same as replaying the stretch. A *snapshot* is the runs of all partitions of a store at
some location, with one manifest that says what they hold and how long they may be followed.
"""
