"""What each command takes, apart from what it does: one module per command, by its name.

Such a module has ``add_to(parser)``, which adds arguments or verbs and sets ``run``: where the function is that does
it, as ``module:function`` of the command line. It takes the parsed options and an ``Output``, and returns the exit
status. Nothing here imports what a command works with, so that ``--help`` and mistakes are answered at once: no
``typing``, no errors, no policies.
"""

from __future__ import annotations
