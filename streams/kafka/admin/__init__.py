"""Administrative clients."""
