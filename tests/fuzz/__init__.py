"""Fuzzers of the parsers in C: one for each, with the inputs that are worth keeping."""
