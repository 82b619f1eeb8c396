"""beautifulsoup4: search and change an HTML page with two parsers."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from bs4 import BeautifulSoup

    path = os.path.join(folder, "page.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            "<html><head><title>Shop</title></head><body><ul id='list'><li class='a'>Pen<li class='b'>Book</ul>"
            "<p>Hello <b>world</b> &amp; all</p><a href='/one'>1</a><a href='/two'>2</a></body></html>"
        )
    result = {}
    for parser in ("html.parser", "lxml"):
        with open(path, encoding="utf-8") as file:
            soup = BeautifulSoup(file, parser)
        assert soup.title.string == "Shop"
        links = [link["href"] for link in soup.find_all("a")]
        soup.p.b.string = "there"
        soup.body.append(soup.new_tag("hr"))
        result[parser] = {
            "links": links,
            "items": [item.get_text(strip=True)[:4] for item in soup.select("#list li.b")],
            "text": soup.p.get_text(),
            "rule": len(soup.find_all("hr")),
            "pretty": len(soup.prettify().splitlines()) > 10,
        }
    xml = BeautifulSoup("<a><b n='1'/></a>", "xml")
    result["xml"] = xml.find("b")["n"]
    return result
