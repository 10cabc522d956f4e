"""The process that speaks for workers in their group: it beats, watches them, and leads if elected (`PROTOCOL.md` H21)."""
