"""openpyxl: write, change and read a workbook."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import os

    from openpyxl import Workbook, load_workbook
    from openpyxl.chart import BarChart, Reference
    from openpyxl.comments import Comment
    from openpyxl.formatting.rule import CellIsRule
    from openpyxl.styles import Alignment, Font, PatternFill
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.datavalidation import DataValidation

    book = Workbook()
    sheet = book.active
    sheet.title = "Sales"
    sheet.append(["Name", "Price", "Day"])
    for name, price in (("Pen", 1.5), ("Book", 9.0), ("Cup", 4.5)):
        sheet.append([name, price, datetime.date(2024, 1, 2)])
    sheet["B5"] = "=SUM(B2:B4)"
    sheet["A1"].font = Font(bold=True, color="FF0000")
    sheet["A1"].fill = PatternFill("solid", fgColor="DDDDDD")
    sheet["A1"].alignment = Alignment(horizontal="center")
    sheet["A1"].comment = Comment("note", "Ann")
    sheet.merge_cells("E1:F2")
    sheet.freeze_panes = "A2"
    sheet.conditional_formatting.add("B2:B4", CellIsRule(operator="greaterThan", formula=["4"]))
    choice = DataValidation(type="list", formula1='"a,b"')
    choice.add("G1")
    sheet.add_data_validation(choice)
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=4), titles_from_data=True)
    sheet.add_chart(chart, "H2")
    book.create_sheet("Other")["A1"] = "caf\u00e9"
    path = os.path.join(folder, "book.xlsx")
    book.save(path)

    again = load_workbook(path)
    again["Sales"]["A6"] = "New"
    again["Sales"].delete_rows(2)
    again.save(path)
    lazy = load_workbook(path, read_only=True)
    rows = [[str(value) for value in row[:2]] for row in lazy["Sales"].iter_rows(values_only=True)]
    lazy.close()
    assert rows[1] == ["Book", "9"] or rows[1] == ["Book", "9.0"]
    return {
        "rows": rows,
        "sheets": again.sheetnames,
        "bold": again["Sales"]["A1"].font.bold,
        "comment": again["Sales"]["A1"].comment.text,
        "merged": [str(r) for r in again["Sales"].merged_cells.ranges],
        "letter": get_column_letter(28),
    }
