"""Typical programs for popular packages, run plain, beside an idle guard, and under one."""
