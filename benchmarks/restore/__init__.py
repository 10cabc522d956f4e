"""The suite `restore`: how long it takes to bring state back."""
