"""Databases on disk; nothing else imports rocksdict."""
