"""click: groups, options, files, prompts and errors, with the CliRunner."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    import click
    from click.testing import CliRunner

    @click.group()
    @click.option("--debug/--no-debug", default=False)
    @click.pass_context
    def cli(context: click.Context, debug: bool) -> None:
        context.obj = {"debug": debug}

    @cli.command()
    @click.argument("source", type=click.File("r"))
    @click.argument("target", type=click.Path(dir_okay=False))
    @click.option("--times", type=click.IntRange(1, 5), default=1, show_default=True)
    @click.pass_obj
    def copy(obj: dict, source: object, target: str, times: int) -> None:
        """Copy a file."""
        with click.open_file(target, "w") as file:
            file.write(source.read() * times)
        click.echo(f"copied debug={obj['debug']}")

    @cli.command()
    @click.option("--name", prompt="Name")
    @click.password_option()
    @click.option("--colour", type=click.Choice(["red", "blue"]), multiple=True)
    def login(name: str, password: str, colour: tuple) -> None:
        click.secho(f"{name}:{len(password)}:{','.join(colour)}", fg="red")
        if not click.confirm("Go on?"):
            raise click.ClickException("stopped")

    runner = CliRunner()
    source, target = os.path.join(folder, "a.txt"), os.path.join(folder, "b.txt")
    with open(source, "w", encoding="utf-8") as file:
        file.write("ab")
    copied = runner.invoke(cli, ["--debug", "copy", source, target, "--times", "3"])
    with open(target, encoding="utf-8") as file:
        assert file.read() == "ababab"
    login_result = runner.invoke(cli, ["login", "--colour", "red", "--colour", "blue"], input="Ann\npw\npw\nn\n")
    with click.progressbar(range(5), file=io.StringIO()) as numbers:
        total = sum(numbers)
    return {
        "copied": copied.output,
        "login": [login_result.output, login_result.exit_code],
        "range": runner.invoke(cli, ["copy", source, target, "--times", "9"]).exit_code,
        "help": runner.invoke(cli, ["copy", "--help"]).output,
        "total": total,
        "style": click.unstyle(click.style("x", bold=True)),
    }
