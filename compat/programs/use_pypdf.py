"""pypdf: write, merge, encrypt, rotate and read PDF files."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    from pypdf import PdfReader, PdfWriter, Transformation
    from pypdf.generic import NameObject, RectangleObject
    from reportlab.pdfgen import canvas

    source = io.BytesIO()
    page = canvas.Canvas(source, pagesize=(300, 200))
    for number in (1, 2, 3):
        page.drawString(50, 100, f"Page number {number}")
        page.showPage()
    page.save()

    reader = PdfReader(source)
    texts = [p.extract_text().strip() for p in reader.pages]
    assert texts == ["Page number 1", "Page number 2", "Page number 3"]

    writer = PdfWriter()
    writer.append(reader, pages=(0, 2))
    writer.add_blank_page(width=100, height=100)
    writer.pages[0].rotate(90)
    writer.pages[1].add_transformation(Transformation().scale(0.5))
    writer.pages[1].cropbox = RectangleObject((0, 0, 150, 100))
    writer.add_metadata({"/Title": "Small", "/Author": "Ann"})
    writer.add_outline_item("First", 0)
    writer.add_attachment("note.txt", b"attached")
    for written in writer.pages:
        written.compress_content_streams()
    path = os.path.join(folder, "out.pdf")
    writer.write(path)
    locked = PdfWriter(clone_from=path)
    locked.encrypt("user", "owner", algorithm="AES-256")
    locked_path = os.path.join(folder, "locked.pdf")
    locked.write(locked_path)

    again = PdfReader(path)
    opened = PdfReader(locked_path)
    result = {
        "texts": texts,
        "pages": len(again.pages),
        "rotation": again.pages[0].rotation,
        "title": again.metadata.title,
        "outline": [item.title for item in again.outline],
        "attached": {name: data[0].decode() for name, data in again.attachments.items()},
        "encrypted": opened.is_encrypted,
        "opened": int(opened.decrypt("user")) > 0 and opened.pages[0].extract_text().strip(),
        "type": str(again.trailer["/Root"][NameObject("/Type")]),
    }
    again.close()
    opened.close()
    return result
