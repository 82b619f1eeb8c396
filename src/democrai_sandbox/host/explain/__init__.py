"""Explanations: why an access is allowed or denied, on a node or from a manifest alone."""
