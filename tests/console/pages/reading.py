"""Parsed pages: their text, parts and links."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from html.parser import HTMLParser

from democrai_sandbox.console.render import MESSAGES

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
        """All text, with folded white space."""
        return folded(self._parts)

    @property
    def done(self):
        """The message code of the page, or an empty text."""
        told = " ".join(self.parts("yes"))
        return next((code for code, message in MESSAGES.items() if told.startswith(message)), "")

    @property
    def code(self):
        """The error code of the page, or an empty text."""
        marked = self.source.partition('<article class="trouble">')[2].rpartition('<p class="soft">')[2]
        return marked.partition("<code>")[2].partition("</code>")[0]

    def part(self, name):
        """Return the text of the element with an id, or an empty text."""
        return self._by_id.get(name, "")

    def parts(self, name):
        """Return the texts of all elements of a class."""
        return self._by_class[name]

    def between(self, begin, end):
        """Return the text between two pieces of the source."""
        found = self.source[self.source.index(begin) :]
        found = found if begin.startswith("<") else found.partition(">")[2]
        return folded(html.unescape(re.sub(r"<[^>]*>", " ", found[: found.index(end)])))

    def error(self, field):
        """Return the error of a field, or an empty text."""
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
    """Return pieces of text as one, with folded white space."""
    return " ".join("".join(parts).split())


def read(client, path, status=200, **more):
    """Get a page with the expected status."""
    answer = client.get(path, **more)
    assert answer.status_code == status, (path, answer.status_code, Page(answer).text[-2000:])
    return Page(answer)


def run(client, module, kind, name, **params):
    """Run a function of a module on its page."""
    import json

    return client.post(f"/extensions/module/{module}/run/{kind}/{name}", data={"params": json.dumps(params)})


def form(answer, action):
    """Return the prefilled values of a form, as a browser sends them."""
    text = answer.text if hasattr(answer, "text") else answer.source
    reader = _Form(action)
    reader.feed(text)
    assert reader.found, f"no form for {action}"
    return reader.values


class _Form(HTMLParser):
    def __init__(self, action):
        super().__init__()
        self._action, self._inside, self._texts, self._select = action, False, None, None
        self.found, self.values = False, {}

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form":
            self._inside = given.get("action", "").partition("?")[0].endswith(self._action)
            self.found |= self._inside
        elif self._inside and tag == "input" and given.get("name"):
            self._take(given)
        elif self._inside and tag == "textarea":
            self._texts, self.values[given["name"]] = given["name"], ""
        elif self._inside and tag == "select":
            self._select = given["name"]
        elif self._inside and tag == "option" and ("selected" in given or self._select not in self.values):
            self.values[self._select] = given.get("value", "")

    def _take(self, given):
        kind, name, value = given.get("type", "text"), given["name"], given.get("value", "")
        if kind in ("radio", "checkbox") and "checked" not in given:
            return
        if kind == "hidden" and name in self.values:
            kept = self.values[name]
            self.values[name] = [*(kept if isinstance(kept, list) else [kept]), value]
        else:
            self.values[name] = value

    def handle_data(self, data):
        if self._texts:
            self.values[self._texts] += data.removeprefix("\n")

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "form"
        self._texts = None if tag == "textarea" else self._texts
