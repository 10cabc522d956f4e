"""Schema registry: schemas, their references and writers."""
