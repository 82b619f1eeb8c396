"""Pages as a person reads them: their text without the marks, their parts, and where they lead."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from html.parser import HTMLParser

from democrai_sandbox.console.messages import MESSAGES

SOON = [(r"just now|\d+ (seconds?|minutes?) ago", "just now")]
"""For golden sentences with a time in them."""
VOID = {"br", "hr", "img", "input", "link", "meta", "path", "circle"}
"""Tags without an end."""


class Page(HTMLParser):
    """The content of a page."""

    def __init__(self, answer):
        super().__init__()
        self.status = answer.status_code
        self.source = answer.text
        self._parts, self.links, self.ids, self.fields, self.disabled = [], [], set(), {}, 0
        self._silent = 0
        self._open, self._by_id, self._by_class = [], {}, defaultdict(list)
        self.feed(self.source)

    @property
    def text(self):
        """All text, white space folded."""
        return folded(self._parts)

    @property
    def done(self):
        """The code of the act that the page confirms; empty for none."""
        told = " ".join(self.parts("yes"))
        return next((code for code, message in MESSAGES.items() if told.startswith(message)), "")

    @property
    def code(self):
        """The code of the error that the page tells; empty for none."""
        marked = self.source.partition('<article class="trouble">')[2].rpartition('<p class="soft">')[2]
        return marked.partition("<code>")[2].partition("</code>")[0]

    def part(self, name):
        """Return the text of the element with an id; empty without one."""
        return self._by_id.get(name, "")

    def parts(self, name):
        """Return the texts of all elements of a class."""
        return self._by_class[name]

    def between(self, begin, end):
        """Return the text from one piece of the source to the next of another: tags, or pieces of them."""
        found = self.source[self.source.index(begin) :]
        found = found if begin.startswith("<") else found.partition(">")[2]
        return folded(html.unescape(re.sub(r"<[^>]*>", " ", found[: found.index(end)])))

    def error(self, field):
        """Return the text of the error beside a field; empty without one."""
        return self.part(f"field-{field}-error")

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
        if tag not in VOID:
            self._open.append((tag, given.get("id"), (given.get("class") or "").split(), len(self._parts)))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        self._silent -= tag in ("script", "style")
        self._parts.append(" ")
        while self._open:
            opened, number, classes, begin = self._open.pop()
            text = folded(self._parts[begin:]) if number or classes else ""
            if number:
                self._by_id[number] = text
            for name in classes:
                self._by_class[name].append(text)
            if opened == tag:
                break

    def handle_data(self, data):
        if not self._silent:
            self._parts.append(data)


def folded(parts):
    """Return pieces of text as one, white space folded."""
    return " ".join("".join(parts).split())


def read(client, path, status=200, **more):
    """Get a page, which must have a status."""
    answer = client.get(path, **more)
    assert answer.status_code == status, (path, answer.status_code, Page(answer).text[-2000:])
    return Page(answer)


def run(client, module, kind, name, **params):
    """Have a module run something from its page."""
    import json

    return client.post(f"/extensions/module/{module}/run/{kind}/{name}", data={"params": json.dumps(params)})
