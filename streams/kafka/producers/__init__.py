"""Writers of topics, transactional and idempotent."""
