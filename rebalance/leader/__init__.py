"""The leader's decisions: a pure state machine from events to records and orders."""
