"""The command line: parse, call, print. Each command imports what it needs, when it runs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macl.errors import UserError
from macl.launch import launched_rank

if TYPE_CHECKING:
    from macl.experiments.recipe import Recipe
    from macl.modalities.base import Score

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Contrastive representation learning whose temperature adapts to the model.",
)

RunArgument = Annotated[Path, typer.Argument(help="A run folder, as made by `macl train`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as loss=dcl epochs=20."),
]


def main() -> None:
    """Run a command; a mistake in the input is told in words, without traceback."""
    try:
        app()
    except UserError as error:
        _say(f"[bold red]error[/]: {_escaped(str(error))}")
        sys.exit(2)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.")] = None,
) -> None:
    """List the recipes: what each is, what it needs."""
    from macl.experiments import recipe as module

    if name is not None:
        values = module.read(name)
        path = module.available().get(name, Path(name))
        print(path.read_text(encoding="utf-8") if path.is_file() else values)
        return
    rows = []
    for shipped in module.available():
        values = module.read(shipped)
        rows.append((shipped, values["modality"], values["description"], values.get("needs", "")))
    _table("Recipes", ("name", "modality", "what", "needs"), rows)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, or a run folder.")],
    overrides: Overrides = None,
    data: Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/RECIPE.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was stopped.")
    ] = False,
    devices: Annotated[int, typer.Option(min=1, help="Processes (GPUs, or CPU workers).")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines, under torchrun or SLURM.")] = 1,
) -> None:
    """Train an encoder without labels."""
    if resume and out is None:
        if not (Path(recipe) / "recipe.yaml").is_file():
            raise UserError(f"--resume: {recipe} is no run folder; say with --out which one it is.")
        out = Path(recipe)
    resolved = _resolved(recipe, overrides, data, out if resume else None)
    folder = out or _free_folder(resolved.name)
    from macl.training.callbacks import Interrupted
    from macl.training.fit import Compute, train

    _tell(f"training [bold]{_escaped(resolved.name)}[/] into {_escaped(str(folder))}")
    compute = Compute(devices=devices, nodes=nodes, progress=sys.stderr.isatty())
    try:
        run = train(resolved, folder, resume=resume, compute=compute)
    except Interrupted as stop:
        _tell(f"stopped by {stop}; continue with: macl train {_escaped(str(folder))} --resume")
        sys.exit(130)
    rows = run.metrics()
    if rows:
        last = {key: value for row in rows for key, value in row.items()}
        _tell(
            f"done: loss {last['loss']:.3f}, alignment A {last['alignment']:.3f}, temperature "
            f"{last['temperature']:.3f}, gradient scale W {last['gradient_scale']:.3f}"
        )
    _tell(f"next: macl evaluate {_escaped(str(folder))}")


@app.command()
def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder; or a sentence encoder: a folder that Hugging Face or "
            "sentence-transformers saved, or package:NAME."
        ),
    ],
    overrides: Overrides = None,
    data: Annotated[
        Path | None, typer.Option(help="Judge on this data instead; for text, also SentEval's.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "--tasks",
            help="Only these, comma-separated: knn, linear, geometry, … or for text sts, transfer, "
            "STS-B, …",
        ),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best monitored encoder.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the scores here too: .json")
    ] = None,
) -> None:
    """Judge an encoder; a run's results go to its results.json. KEY=VALUE sets protocol options."""
    if output is not None and output.suffix != ".json":
        raise UserError(f"{output}: scores are written as JSON; give a name that ends in .json.")
    from macl.evaluation.judge import judge, write_scores
    from macl.runs import Run

    given = list(overrides or ())
    if _is_text_encoder(run):
        from macl.modalities.text.judging import judge_text_encoder

        if best:
            raise UserError(f"--best: {run} is no run, so nothing of it was monitored.")
        scores = judge_text_encoder(run, given, data=data, tasks=protocol)
    else:
        scores = judge(Run.open(run), given, data=data, protocol=protocol, best=best)
    _scores(scores)
    if output is not None:
        write_scores(output, str(run), scores)
        _tell(f"written: {_escaped(str(output))}")


@app.command()
def embed(
    run: RunArgument,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file or folder to embed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".parquet, .npy or .npz")],
) -> None:
    """Turn your data into vectors, with their names beside them."""
    from macl.runs import Run
    from macl.vectors import check_suffix, write_vectors

    check_suffix(output)
    opened = Run.open(run)
    dataset = opened.modality.open(opened.recipe.data, source)
    vectors = opened.embed(dataset)
    write_vectors(output, vectors, dataset.names)
    _tell(f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions in {_escaped(str(output))}")


@app.command()
def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write.")],
    onnx: Annotated[bool, typer.Option(help="Also an ONNX graph, checked against torch.")] = True,
) -> None:
    """Take the encoder elsewhere: safetensors with the usual key names, and ONNX."""
    from macl.export import export_run
    from macl.runs import Run

    for line in export_run(Run.open(run), folder, onnx=onnx):
        _tell(_escaped(line))


@app.command()
def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="key=a,b,c; several --vary make a grid.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, …")] = 3,
    data: Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: comparisons/RECIPE.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, one core each.")] = 1,
    metrics: Annotated[
        str | None, typer.Option(help='Columns, such as "knn top1,linear top1,alignment".')
    ] = None,
) -> None:
    """Compare settings over seeds, with intervals; stopped or not, finished runs are kept."""
    from macl.experiments import compare as module
    from macl.experiments.tables import as_cells, write_tables
    from macl.training.callbacks import Interrupted

    folder = out or Path("comparisons") / Path(recipe).stem
    given = [*(overrides or ()), *_data_override(data)]
    cells = module.plan(recipe, vary or [], seeds, given, folder)
    done = sum(map(module.is_finished, cells))
    _tell(f"{len(cells)} runs in {_escaped(str(folder))}, {done} of them finished before")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, runs saved
    try:
        module.run_cells(cells, jobs)
    except (Interrupted, KeyboardInterrupt):
        _tell("stopped; give the same command again to go on")
        sys.exit(130)
    rows = module.tabulate(cells, None if metrics is None else metrics.split(","))
    header, lines = as_cells(rows)
    _table(recipe, tuple(header), lines)
    for file in write_tables(rows, folder):
        _tell(f"written: {_escaped(str(file))}")


def _is_text_encoder(path: Path) -> bool:
    if (path / "recipe.yaml").is_file():
        return False
    from macl.modalities.text.folders import looks_like_encoder

    return looks_like_encoder(path)


def _data_override(data: Path | None) -> list[str]:
    if data is None:
        return []
    if not data.exists():
        raise UserError(f"--data {data}: there is no such file or folder.")
    return [f"data.path={data.resolve()}"]


def _resolved(
    name: str, overrides: list[str] | None, data: Path | None, resumed: Path | None
) -> Recipe:
    """The recipe to train: shipped, from a file, or the one that a run folder holds."""
    from macl.experiments import recipe as module

    given = [*(overrides or ()), *_data_override(data)]
    stored = Path(name) / "recipe.yaml"
    source = str(stored) if stored.is_file() else name
    if resumed is not None and not (resumed / "recipe.yaml").is_file():
        raise UserError(f"{resumed} holds no run to resume; leave --resume out to start one.")
    return module.load(source, given)


def _free_folder(name: str) -> Path:
    """runs/NAME, runs/NAME-2, …: the first that is not there. Later processes ask the first one."""
    chosen = os.environ.get("MACL_RUN_FOLDER")
    if chosen is None:
        if "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            raise UserError(
                "under torchrun or srun, say with --out where the run goes: all processes share it."
            )
        base, number = Path("runs") / name, 1
        folder = base
        while folder.exists():
            number += 1
            folder = base.with_name(f"{name}-{number}")
        chosen = os.environ["MACL_RUN_FOLDER"] = str(folder)
    return Path(chosen)


def _tell(message: str) -> None:
    if launched_rank() == 0:
        _say(message)


def _say(message: str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(message)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_escaped(str(cell)) for cell in row))
    Console().print(table)


def _scores(scores: list[Score]) -> None:
    rows = [(s.protocol, s.task, s.split, s.metric, f"{s.value:.2f}") for s in scores]
    _table("Results", ("protocol", "task", "split", "metric", "value"), rows)
