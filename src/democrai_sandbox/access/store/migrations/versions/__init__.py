"""One module for each step.

Each says whether it is ``additive``: nodes of the version before, which know nothing of it, neither miss anything
afterwards nor meet a value that they cannot read. They may go on with the database then. New tables, indexes, and
columns that have a default are; a column that is dropped, renamed or gets other values is not.
"""
