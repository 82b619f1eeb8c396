"""Worker processes: a subject in an interpreter of its own, with the same calls and the same errors as in process.

``pool`` is the host's side; ``main`` and what it imports is the worker's, and needs nothing but the standard library.
"""
