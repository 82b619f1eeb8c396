"""lxml: XML and HTML parsing, XPath, XSLT, a schema, and a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from lxml import etree, html, objectify

    root = etree.Element("shop")
    for number, name in enumerate(["pen", "book"], 1):
        etree.SubElement(root, "item", id=str(number)).text = name
    path = os.path.join(folder, "shop.xml")
    etree.ElementTree(root).write(path, pretty_print=True, xml_declaration=True, encoding="utf-8")
    tree = etree.parse(path)
    names = tree.xpath("//item[@id > 1]/text()")
    assert names == ["book"]

    style = etree.XSLT(
        etree.XML(
            '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">'
            '<xsl:template match="/"><list><xsl:for-each select="//item"><n><xsl:value-of select="."/></n>'
            "</xsl:for-each></list></xsl:template></xsl:stylesheet>"
        )
    )
    schema = etree.XMLSchema(
        etree.XML(
            '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
            '<xs:element name="a" type="xs:integer"/></xs:schema>'
        )
    )
    page = html.fromstring("<html><body><p class='x'>One<br>Two</p><a href='/next'>go</a></body></html>")
    page.make_links_absolute("http://example.org/")
    events = [event for event, _ in etree.iterparse(path, events=("start", "end"))]
    try:
        etree.fromstring("<a><b></a>")
        error = ""
    except etree.XMLSyntaxError as problem:
        error = type(problem).__name__
    return {
        "names": [str(n) for n in names],
        "xslt": etree.tostring(style(tree)).decode(),
        "valid": [schema.validate(etree.XML("<a>1</a>")), schema.validate(etree.XML("<a>x</a>"))],
        "text": page.xpath("string(//p)"),
        "links": [link[2] for link in page.iterlinks()],
        "events": len(events),
        "object": int(objectify.fromstring("<r><n>5</n></r>").n + 1),
        "error": error,
    }
