"""The story: a module is stopped, somebody decides in the console, it goes on by itself, and the audit has it all."""

from __future__ import annotations

import json
import textwrap
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from .house import NotStarted

if TYPE_CHECKING:
    from .house import House

_PAUSE = 0.5
_APPROVED = {"approved_for_session": "for this session", "approved": "permanently"}


class Story:
    """Tells it, while the console is open beside it."""

    def __init__(self, house: House, world: str) -> None:
        self._house = house
        self._page = f"{world}/forecast/oslo"
        self._uma, self._looking = house.people()

    def tell(self) -> None:
        """Go through it from the beginning to the end; in the middle, somebody else decides."""
        request = self._stopped()
        state = self._decided(request)
        if state == "denied":
            print("   So the module stays stopped, and is told so. Start again to see it go on.")
        else:
            self._goes_on(request)
        print("\n4. The audit has every step of it:")
        print(f"      {self._house.url}/audit?request={request}", flush=True)

    def _stopped(self) -> str:
        print(f"1. uma has the module weather fetch {self._page}")
        status, said = self._call("/modules/weather/actions/fetch", {"params": {"url": self._page}}, self._uma)
        if status != 403:  # noqa: PLR2004 - what it is to be
            raise NotStarted(f"expected a denial, got {status}: {said}")
        print(f"   It is denied, because no rule or approval permits it:\n\n      {said['detail']}")
        print(textwrap.indent(str(said["hint"]), "      "), "\n")
        return str(said["pending_request_id"])

    def _decided(self, request: str) -> str:
        print("2. The request waits for you. Open it, and approve it for the session, or for good, or deny it:")
        print(f"      {self._house.url}/requests/{request}", flush=True)
        while True:
            found = self._look(request)["request"]
            if found["state"] != "pending":
                break
            time.sleep(_PAUSE)
        how = _APPROVED.get(found["state"], found["state"])
        print(f"\n   {found['decided_by']} has decided: {how}" + (f" ({found['reason']})" if found["reason"] else ""))
        return str(found["state"])

    def _goes_on(self, request: str) -> None:
        print("\n3. The module had left word how to go on. Its action runs again, for uma:")
        while True:
            resume = self._look(request)["resume"]
            if resume and resume["state"] in {"succeeded", "failed"}:
                break
            time.sleep(_PAUSE)
        if resume["state"] == "failed":
            print(f"      it failed: {resume['last_error']}")
            return
        _, shown = self._call("/modules/weather/render", {"params": {}}, self._uma)
        print(textwrap.indent(json.dumps(shown["result"], indent=2), "      "))
        print(f"   That is what the page of the module shows: {self._house.url}/extensions/module/weather")

    def _look(self, request: str) -> dict[str, Any]:
        status, said = self._call(f"/requests/{request}", None, self._looking)
        if status != 200:  # noqa: PLR2004 - the same
            raise NotStarted(f"the request cannot be looked at: {status} {said}")
        return said

    def _call(self, path: str, body: dict[str, Any] | None, token: str) -> tuple[int, dict[str, Any]]:
        """Call the API with a token; return the status and what was said."""
        address, headers = f"{self._house.url}/api/v1{path}", {"Authorization": f"Bearer {token}"}
        call = urllib.request.Request(address, headers=headers)  # noqa: S310 - the address of our own server
        if body is not None:
            call.data = json.dumps(body).encode()
            call.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(call, timeout=60) as answer:  # noqa: S310 - the same
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError as error:
            raise NotStarted(f"the server is not there any more: {error.reason}") from None
