"""Arguments of the commands, one module per command.

Each module has ``add_to(parser)``, which adds arguments or verbs and sets ``run`` to ``module:function`` of the command
line. That function takes the parsed options and an ``Output``, and returns the exit status. These modules do not import
the commands, so that ``--help`` and usage errors are fast: no ``typing``, no errors, no policies.
"""

from __future__ import annotations
