"""Tools, agents and pipelines: each runs as a separate subject, inside its caller."""
