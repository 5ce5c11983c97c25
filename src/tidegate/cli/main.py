"""The `tidegate` command: parses arguments and hands over. Imports a command's module only when it is called for."""

from collections.abc import Callable
from typing import Annotated

import typer

from tidegate.model.errors import TidegateError
from tidegate.model.version import VERSION

app = typer.Typer(
    name="tidegate",
    help="Exactly-once checkpoints for PySpark streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="How long each of the three runs takes.")] = 20.0,
) -> None:
    """Run a stream under backpressure and watch its checkpoints complete."""
    from tidegate.cli import demo as command

    _exit_with(lambda: command.run(seconds))


@app.command()
def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Also start Spark and run a barrier stage.")] = False,
) -> None:
    """Check Python, Java, packages, cores and sockets; say what to mend."""
    from rich.console import Console

    from tidegate.cli import doctor as command

    _exit_with(lambda: command.run(Console(), with_spark=spark))


@app.command()
def checkpoints(
    location: Annotated[str, typer.Argument(help="The checkpointLocation of a query, running or not.")],
) -> None:
    """List a query's retained checkpoints, and the last that failed."""
    from rich.console import Console

    from tidegate.cli import checkpoints as command

    _exit_with(lambda: command.show_all(Console(), location))


@app.command()
def why(
    location: Annotated[str, typer.Argument(help="The checkpointLocation of a query, running or not.")],
    checkpoint: Annotated[
        int | None, typer.Argument(help="Its id; by default the newest that was slow or failed.")
    ] = None,
) -> None:
    """Say why a checkpoint took so long, or failed, and what to do about it."""
    from tidegate.cli import checkpoints as command

    _exit_with(lambda: command.explain(location, checkpoint))


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A checkpointLocation, a checkpoint or a savepoint.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every file; exit code 1 if one is damaged.")] = False,
    orphans: Annotated[bool, typer.Option("--orphans", help="List the files of a location that nobody needs.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="With --orphans: remove them.")] = False,
    older_than: Annotated[
        str, typer.Option(help="With --orphans: only of generations that have been over for so long.")
    ] = "1h",
) -> None:
    """Show what a checkpoint, a savepoint or a whole location consists of."""
    from rich.console import Console

    from tidegate.cli import inspect as command

    if remove and not orphans:
        raise typer.BadParameter("--remove removes orphans: add --orphans.")
    if verify and orphans:
        raise typer.BadParameter("--verify and --orphans are two questions: ask one of them at a time.")
    if orphans:
        listed = command.remove_orphans if remove else command.show_orphans
        _exit_with(lambda: listed(path, older_than=older_than))
    _exit_with(lambda: command.show_verified(path) if verify else command.show(Console(), path))


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="A savepoint, a checkpoint, or a checkpointLocation for its newest.")],
    file: Annotated[str, typer.Argument(help="The Python program that starts the query.")],
) -> None:
    """Say whether a program's query could be restored from a checkpoint, and what would go where."""
    from tidegate.cli import check as command

    _exit_with(lambda: command.run(path, file))


@app.command()
def jobs(
    host: Annotated[str, typer.Option(help="The machine to ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first of the ports that queries listen on.")] = 4400,
) -> None:
    """List the queries that run on this machine."""
    from rich.console import Console

    from tidegate.cli import running as command

    _exit_with(lambda: command.jobs(Console(), host=host, port=port))


@app.command()
def savepoint(
    location: Annotated[str, typer.Argument(help="The checkpointLocation of a running query.")],
    path: Annotated[str | None, typer.Argument(help="A folder for it; by default below the location.")] = None,
    unaligned: Annotated[
        bool, typer.Option("--unaligned", help="Overtake the rows in flight, and store them.")
    ] = False,
) -> None:
    """Take a savepoint of a running query; print its path."""
    from tidegate.cli import running as command

    _exit_with(lambda: command.savepoint(location, path, unaligned=unaligned))


@app.command()
def stop(
    location: Annotated[str, typer.Argument(help="The checkpointLocation of a running query.")],
    savepoint: Annotated[
        str | None, typer.Option(help="A folder: stop with a savepoint in it; print its path.")
    ] = None,
    unaligned: Annotated[
        bool, typer.Option("--unaligned", help="With --savepoint: overtake the rows in flight.")
    ] = False,
) -> None:
    """Stop a running query, and wait for its end."""
    from tidegate.cli import running as command

    if savepoint is None:
        if unaligned:
            raise typer.BadParameter("--unaligned says how a savepoint is taken: add --savepoint.")
        _exit_with(lambda: command.stop(location))
    else:
        folder = savepoint
        _exit_with(lambda: command.stop_with_savepoint(location, folder, unaligned=unaligned))


def _exit_with(command: Callable[[], int]) -> None:
    """An error of ours is one sentence for the user; anything else is a bug and keeps its traceback."""
    try:
        code = command()
    except TidegateError as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        code = 1
    raise typer.Exit(code)
