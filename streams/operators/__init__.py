"""The nodes the DSL turns into, as operators on batches."""
