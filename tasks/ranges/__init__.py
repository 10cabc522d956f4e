"""Key ranges of tasks that run in threads of their own, and what joins their work into one commit."""
