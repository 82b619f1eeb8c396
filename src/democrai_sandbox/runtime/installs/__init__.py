"""Installation of engines and extractors: a separate environment, built by pip inside a guard."""
