"""Loading a store's content from files or a table."""
