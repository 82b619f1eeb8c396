"""rich: tables, trees, markup, progress and a traceback, written to a string."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    from rich.console import Console
    from rich.json import JSON
    from rich.markdown import Markdown
    from rich.panel import Panel
    from rich.progress import track
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    output = io.StringIO()
    console = Console(file=output, width=60, force_terminal=False, record=True, color_system=None)
    table = Table(title="Shop")
    table.add_column("Name")
    table.add_column("Price", justify="right")
    table.add_row("Pen", "1.50")
    table.add_row("[bold]Book[/bold]", "9.00")
    console.print(table)
    tree = Tree("root")
    tree.add("leaf").add("deeper")
    console.print(tree)
    console.print(Panel(Markdown("# Title\n\n* one\n* two\n")))
    console.print(Syntax("def f(x):\n    return x + 1\n", "python", line_numbers=True))
    console.print(JSON('{"a": [1, 2]}'))
    total = sum(track(range(5), console=console, description="Work"))
    try:
        1 / 0
    except ZeroDivisionError:
        console.print_exception(max_frames=1)
    path = os.path.join(folder, "page.html")
    console.save_html(path)
    with open(path, encoding="utf-8") as file:
        assert "Pen" in file.read()

    colour = io.StringIO()
    Console(file=colour, force_terminal=True, color_system="truecolor", width=40).print(Text("hi", style="red"))
    text = output.getvalue()
    return {
        "table": text.splitlines()[:7],
        "total": total,
        "colour": colour.getvalue(),
        "traceback": "ZeroDivisionError" in text,
        "plain": Text.from_markup("[b]x[/b] y").plain,
    }
