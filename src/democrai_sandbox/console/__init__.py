"""The web console and the HTTP API."""
