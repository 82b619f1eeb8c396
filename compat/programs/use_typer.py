"""typer: commands, options, prompts and errors, with the CliRunner."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import typer
    from typer.testing import CliRunner

    app = typer.Typer()

    @app.command()
    def hello(name: str, times: int = 1, loud: bool = False) -> None:
        """Say hello."""
        for _ in range(times):
            text = f"Hello {name}"
            typer.echo(text.upper() if loud else text)

    @app.command()
    def save(path: str, text: str = typer.Option(..., prompt=True)) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        typer.secho("saved", fg="green")

    @app.command()
    def fail(code: int = typer.Argument(3, min=1, max=9)) -> None:
        typer.echo("problem", err=True)
        raise typer.Exit(code)

    runner = CliRunner()
    greeting = runner.invoke(app, ["hello", "Ann", "--times", "2", "--loud"])
    path = os.path.join(folder, "note.txt")
    saved = runner.invoke(app, ["save", path], input="note\n")
    with open(path, encoding="utf-8") as file:
        assert file.read() == "note"
    help_text = runner.invoke(app, ["hello", "--help"])
    assert greeting.exit_code == 0 and "Say hello." in help_text.output
    return {
        "greeting": greeting.output,
        "saved": saved.output,
        "fail": runner.invoke(app, ["fail", "5"]).exit_code,
        "range": runner.invoke(app, ["fail", "50"]).exit_code,
        "bad": runner.invoke(app, ["hello", "Ann", "--times", "x"]).exit_code,
        "unknown": runner.invoke(app, ["nothing"]).exit_code,
    }
