"""Generated parts of documents: tables of metrics and errors, pictures."""
