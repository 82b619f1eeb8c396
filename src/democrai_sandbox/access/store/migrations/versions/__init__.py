"""One module per migration.

A migration is ``additive`` if nodes of the previous version, which do not know it, miss nothing and read no unknown
value afterwards. They may then keep using the database. New tables, indexes and columns with a default are additive;
dropping or renaming a column, or new values in it, are not.
"""
