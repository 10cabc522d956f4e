"""The suite `restore`: duration of state restoration."""
