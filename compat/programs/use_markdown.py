"""markdown: text to HTML with extensions, and a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import xml.etree.ElementTree as etree

    import markdown
    from markdown.extensions import Extension
    from markdown.inlinepatterns import InlineProcessor
    from markdown.treeprocessors import Treeprocessor

    text = (
        "# Title\n\nSome *text* with `code` and [link](http://shop.example).\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\nTerm\n: Meaning\n\nNote[^1]\n\n[^1]: Foot.\n"
    )
    html = markdown.markdown(text, extensions=["extra", "toc", "codehilite", "sane_lists"])
    assert "<table>" in html and "codehilite" in html

    class Strike(InlineProcessor):
        def handleMatch(self, match, data):
            element = etree.Element("del")
            element.text = match.group(1)
            return element, match.start(0), match.end(0)

    class Upper(Treeprocessor):
        def run(self, root):
            for heading in root.iter("h1"):
                heading.text = heading.text.upper()

    class Both(Extension):
        def extendMarkdown(self, md):
            md.inlinePatterns.register(Strike(r"~~(.*?)~~", md), "strike", 175)
            md.treeprocessors.register(Upper(md), "upper", 5)

    converter = markdown.Markdown(extensions=["meta", "toc", Both()])
    page = converter.convert("title: Hello\n\n# head\n\n~~old~~ new\n\n## sub\n")
    source, target = os.path.join(folder, "a.md"), os.path.join(folder, "a.html")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    markdown.markdownFromFile(input=source, output=target, encoding="utf-8")
    with open(target, encoding="utf-8") as file:
        plain = file.read()
    return {"html": html, "page": page, "meta": converter.Meta, "toc": converter.toc_tokens, "plain": plain[:60]}
