"""python-docx: write and read a Word document."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from docx import Document
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.shared import Inches, Pt, RGBColor
    from PIL import Image

    picture = os.path.join(folder, "picture.png")
    Image.new("RGB", (20, 10), "blue").save(picture)
    document = Document()
    document.add_heading("Report", 0)
    paragraph = document.add_paragraph("Plain and ")
    run = paragraph.add_run("bold")
    run.bold = True
    run.font.size = Pt(14)
    run.font.color.rgb = RGBColor(200, 0, 0)
    paragraph.alignment = WD_ALIGN_PARAGRAPH.CENTER
    document.add_paragraph("item", style="List Bullet")
    table = document.add_table(rows=1, cols=2, style="Table Grid")
    table.rows[0].cells[0].text = "Name"
    cells = table.add_row().cells
    cells[0].text, cells[1].text = "Pen", "1.50"
    document.add_picture(picture, width=Inches(1))
    document.add_page_break()
    document.sections[0].header.paragraphs[0].text = "Header"
    document.core_properties.author = "Ann"
    path = os.path.join(folder, "report.docx")
    document.save(path)

    again = Document(path)
    texts = [p.text for p in again.paragraphs if p.text.strip()]
    assert texts[:2] == ["Report", "Plain and bold"]
    return {
        "texts": texts,
        "table": [[cell.text for cell in row.cells] for row in again.tables[0].rows],
        "bold": [r.text for p in again.paragraphs for r in p.runs if r.bold],
        "author": again.core_properties.author,
        "header": again.sections[0].header.paragraphs[0].text,
        "pictures": len(again.inline_shapes),
        "style": again.paragraphs[2].style.name,
    }
