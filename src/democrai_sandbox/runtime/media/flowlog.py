"""Debug log of media fetches, when ``DEMOCRAI_DEBUG_MEDIA_FLOW=1`` is set for the host."""

from __future__ import annotations

import re

from democrai_sandbox.kernel import flow

SWITCH = "DEMOCRAI_DEBUG_MEDIA_FLOW"
_QUERY = re.compile(r"[?#].*", re.DOTALL)


class FlowLog(flow.FlowLog):
    """Prints the flow if enabled. Session keys and query strings, which may contain tokens, are masked."""

    switch = SWITCH
    label = "[MEDIA_FLOW]"

    def shown(self, name: str, value: object) -> object:
        """Return a detail in printable form."""
        shown = super().shown(name, value)
        return masked_url(value) if shown is value and isinstance(value, str) else shown


def masked_url(url: str) -> str:
    """Return a URL without its query and fragment, which may contain secrets."""
    return _QUERY.sub("?***", url)
