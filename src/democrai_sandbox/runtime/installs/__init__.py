"""Installing what engines and extractors need: an environment of their own, made by real pip inside a guard."""
