"""Worker processes: a subject in a separate interpreter, with the same calls and errors as in the host's process.

``handle`` is the host's side. ``main`` and its imports are the worker's side, and need only the standard library.
"""
