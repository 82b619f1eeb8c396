"""xlsxwriter: a workbook with formats, formulas, a chart and a picture."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import io
    import os
    import zipfile

    import xlsxwriter
    from PIL import Image
    from xlsxwriter.utility import xl_range, xl_rowcol_to_cell

    picture = os.path.join(folder, "picture.png")
    Image.new("RGB", (20, 10), "green").save(picture)
    path = os.path.join(folder, "book.xlsx")
    with xlsxwriter.Workbook(path, {"tmpdir": folder}) as book:
        book.set_properties({"title": "Small", "created": datetime.datetime(2024, 1, 1)})
        sheet = book.add_worksheet("Sales")
        bold = book.add_format({"bold": True, "bg_color": "#DDDDDD"})
        money = book.add_format({"num_format": "0.00"})
        sheet.write_row(0, 0, ["Name", "Price"], bold)
        for row, (name, price) in enumerate([("Pen", 1.5), ("Book", 9.0)], 1):
            sheet.write(row, 0, name)
            sheet.write(row, 1, price, money)
        sheet.write_formula("B4", "=SUM(B2:B3)", money, 10.5)
        sheet.write_datetime("C1", datetime.datetime(2024, 1, 2), book.add_format({"num_format": "yyyy-mm-dd"}))
        sheet.write_url("C2", "http://shop.example")
        sheet.write_rich_string("C3", "a ", bold, "b", " c")
        sheet.insert_image("D1", picture)
        sheet.add_table("F1:G3", {"data": [["x", 1], ["y", 2]]})
        sheet.conditional_format("B2:B3", {"type": "3_color_scale"})
        sheet.data_validation("H1", {"validate": "list", "source": ["a", "b"]})
        chart = book.add_chart({"type": "column"})
        chart.add_series({"values": "=Sales!$B$2:$B$3"})
        sheet.insert_chart("D5", chart)

    with zipfile.ZipFile(path) as archive:
        names = sorted(archive.namelist())
        strings = archive.read("xl/sharedStrings.xml").decode()
    memory = io.BytesIO()
    small = xlsxwriter.Workbook(memory, {"in_memory": True, "constant_memory": False})
    small.add_worksheet().write("A1", "x")
    small.close()
    assert "Book" in strings
    return {
        "names": names,
        "memory": memory.getvalue()[:2].decode(),
        "cell": [xl_rowcol_to_cell(3, 27), xl_range(0, 0, 2, 2)],
    }
