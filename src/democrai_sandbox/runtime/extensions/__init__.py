"""Extensions of a host: registry, importer, settings and shadow runs."""
