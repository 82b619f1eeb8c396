"""Migrations of the schema. The effect of a released migration never changes."""
