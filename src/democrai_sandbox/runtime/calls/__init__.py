"""Calls into extensions: invocation, guard, threads, outcome and output."""
