"""Arguments of the commands, one module per group of commands.

Each command has a function ``<command>_arguments(parser)``, which adds arguments or verbs and sets ``run`` to
``module:function`` of the command line. That function takes the parsed options and a ``CommandOutput``, and returns the
exit status. These modules do not import the commands, so that ``--help`` and usage errors are fast: no ``typing``, no
errors, no policies.
"""

from __future__ import annotations
