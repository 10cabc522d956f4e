"""Programs that tests of bulk work start, to kill them or to have executors of their own."""
