"""pdfplumber: words, lines, tables and a page image from a PDF file."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import pdfplumber
    from reportlab.lib import colors
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table, TableStyle
    from reportlab.lib.styles import getSampleStyleSheet

    path = os.path.join(folder, "table.pdf")
    rows = [["Name", "Price"], ["Pen", "1.50"], ["Book", "9.00"]]
    table = Table(rows, style=TableStyle([("GRID", (0, 0), (-1, -1), 1, colors.black)]))
    SimpleDocTemplate(path).build([Paragraph("Shop list", getSampleStyleSheet()["Title"]), table])

    with pdfplumber.open(path) as pdf:
        page = pdf.pages[0]
        found = page.extract_tables()[0]
        words = [word["text"] for word in page.extract_words()]
        title = page.crop((0, 0, page.width, page.height / 6)).extract_text()
        result = {
            "table": found,
            "words": words,
            "title": title,
            "size": [round(float(page.width)), round(float(page.height))],
            "chars": len(page.chars),
            "fonts": sorted({char["fontname"] for char in page.chars}),
            "search": [match["text"] for match in page.search(r"\d\.\d+")],
            "image": list(page.to_image(resolution=40).original.size),
        }
    assert found == rows
    return result
