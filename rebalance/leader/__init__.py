"""The group leader: a pure state machine from observations to records and orders."""
