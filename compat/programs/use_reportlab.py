"""reportlab: a canvas, a flowing document, a drawing and a barcode."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import re

    from PIL import Image
    from reportlab.graphics import renderPDF, renderSVG
    from reportlab.graphics.barcode import qr
    from reportlab.graphics.charts.barcharts import VerticalBarChart
    from reportlab.graphics.shapes import Circle, Drawing, String
    from reportlab.lib import colors
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.pdfgen import canvas
    from reportlab.platypus import Image as FlowImage
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table

    picture = os.path.join(folder, "picture.png")
    Image.new("RGB", (20, 20), "red").save(picture)
    first = os.path.join(folder, "canvas.pdf")
    page = canvas.Canvas(first, pagesize=A4, invariant=1)
    page.setFont("Helvetica-Bold", 20)
    page.drawString(100, 700, "Hello caf\u00e9")
    page.setFillColor(colors.blue)
    page.rect(100, 500, 200, 100, fill=1)
    page.drawImage(picture, 100, 400)
    page.linkURL("http://shop.example", (100, 690, 200, 720))
    page.bookmarkPage("top")
    page.showPage()
    page.save()

    drawing = Drawing(200, 100)
    drawing.add(Circle(50, 50, 20, fillColor=colors.green))
    drawing.add(String(10, 10, "text"))
    chart = VerticalBarChart()
    chart.data = [(1, 3, 2)]
    drawing.add(chart)
    renderPDF.drawToFile(drawing, os.path.join(folder, "drawing.pdf"))
    svg = renderSVG.drawToString(drawing)

    styles = getSampleStyleSheet()
    story = [
        Paragraph("Title &amp; <b>bold</b>", styles["Title"]),
        Paragraph("text " * 200, styles["BodyText"]),
        Spacer(1, 12),
        Table([["a", 1], ["b", 2]], style=[("GRID", (0, 0), (-1, -1), 1, colors.grey)]),
        FlowImage(picture, 40, 40),
        PageBreak(),
        Drawing(60, 60),
        qr.QrCode("hello"),
    ]
    second = os.path.join(folder, "document.pdf")
    document = SimpleDocTemplate(second, title="Small", invariant=1)
    document.build(story)
    with open(first, "rb") as file:
        data = file.read()
    assert data.startswith(b"%PDF")
    return {
        "objects": len(re.findall(rb"\d+ 0 obj", data)),
        "links": data.count(b"http://shop.example"),
        "pages": document.page,
        "svg": svg.count("<circle"),
        "names": sorted(os.listdir(folder)),
    }
