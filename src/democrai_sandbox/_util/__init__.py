"""Helpers without a subject of their own. They use the standard library only, and every other package may use them."""
