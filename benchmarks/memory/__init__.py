"""The suite `memory`: how resident memory develops under a steady load while the keys grow."""
