"""From measured rows to kept results, goals and tables."""
