"""Landlock: restrict a process to files, TCP ports and scopes, without privileges."""
