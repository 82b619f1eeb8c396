"""Pages as a person reads them: their text without the marks, and where they lead."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page says."""

    def __init__(self, answer):
        super().__init__()
        self.status = answer.status_code
        self.source = answer.text
        self._parts, self.links, self.ids, self.fields, self.disabled = [], [], set(), {}, 0
        self._silent = 0
        self.feed(self.source)

    @property
    def text(self):
        """All text, white space folded."""
        return " ".join("".join(self._parts).split())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._silent += tag in ("script", "style")
        self._parts.append(" ")
        if "href" in given:
            self.links.append(given["href"])
        if "id" in given:
            self.ids.add(given["id"])
        if tag in ("input", "select", "textarea"):
            self.fields[given.get("name")] = given
        self.disabled += "disabled" in given

    def handle_endtag(self, tag):
        self._silent -= tag in ("script", "style")
        self._parts.append(" ")

    def handle_data(self, data):
        if not self._silent:
            self._parts.append(data)


def read(client, path, status=200, **more):
    """Get a page, which must have a status."""
    answer = client.get(path, **more)
    assert answer.status_code == status, (path, answer.status_code, Page(answer).text[-2000:])
    return Page(answer)


def run(client, module, kind, name, **params):
    """Have a module run something from its page."""
    import json

    return client.post(f"/extensions/module/{module}/run/{kind}/{name}", data={"params": json.dumps(params)})
