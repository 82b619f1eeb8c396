"""Arguments of the commands, one module per group of commands.

Each command has an item ``<command>_arguments`` (see ``options``), which adds arguments or verbs to its parser and sets
``run`` to ``module:function`` of the command line. That function takes the parsed options and a ``CommandOutput``, and
returns the exit status. These modules do not import the commands, so that ``--help`` and usage errors are fast: no
``typing``, no errors, no policies.
"""
