"""`softcue tasks`: the list of tasks, one task in full, a check of data files, lengths of pairs, and docs/tasks.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softcue.cli.completion import complete_task
from softcue.cli.options import SkipBadRows

if TYPE_CHECKING:
    from softcue.tasks.check_sizes import SplitCheck
    from softcue.tasks.task import Task

app = typer.Typer(
    help="List tasks, show one, check data files against their published sizes, or compare lengths of pairs.",
    invoke_without_command=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
FEW_LABELS = 4  # as many as fit into a cell


@app.callback()
def tasks(context: typer.Context, as_json: Json = False) -> None:
    """List the tasks that come with softcue; `softcue tasks show NAME` prints one in full."""
    if context.invoked_subcommand is not None:
        return
    from softcue.cli.output import print_json, print_table
    from softcue.tasks import library_names, library_task
    from softcue.tasks.task_docs import sizes, sizes_text

    all_tasks = [library_task(name) for name in library_names()]
    if as_json:
        print_json(
            {
                "tasks": [
                    {
                        "name": task.name,
                        "description": task.description,
                        "kind": task.kind,
                        "text": list(task.text),
                        "labels": list(task.label_names),
                        "metric": task.main_metric,
                        "rows": sizes(task),
                    }
                    for task in all_tasks
                ]
            }
        )
        return
    columns = ["task", "what it asks", "train / validation / test", "metric", "labels"]
    for kind in dict.fromkeys(task.kind for task in all_tasks):
        rows = [
            [task.name, task.description, sizes_text(task), task.main_metric, _labels(task)]
            for task in all_tasks
            if task.kind == kind
        ]
        print_table(kind, columns, rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A task, or a YAML file of your own.", autocompletion=complete_task)],
    as_json: Json = False,
) -> None:
    """Print one task in full: texts, labels, metrics, sizes, citation, licence."""
    from softcue.cli.output import print_json
    from softcue.tasks.catalogue import find_task
    from softcue.tasks.task_docs import input_formats, section, sizes

    task = find_task(name)
    if as_json:
        print_json(task.model_dump(mode="json") | {"wording": input_formats(task), "rows": sizes(task)})
    else:
        typer.echo(section(task))


@app.command("check")
def check(
    data: Annotated[Path, typer.Option(help="The folder with the data files.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these tasks, or YAML files of your own.", autocompletion=complete_task),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the rows and labels of data files with the published figures; exit code 1 if any differ."""
    from softcue.cli.output import print_json
    from softcue.errors import DataError
    from softcue.tasks import library_names
    from softcue.tasks.catalogue import find_task
    from softcue.tasks.check_sizes import check as check_files
    from softcue.tasks.check_sizes import unclaimed_files

    checked = check_files(data, [find_task(name) for name in names or library_names()])
    if all(entry.status == "absent" for entry in checked):
        raise DataError(
            setting="--data",
            got=data,
            expected="a folder with files of the tasks",
            fix="see docs/tasks.md for their places",
        )
    unread = [] if names else unclaimed_files(data, checked)  # with named tasks, files of other tasks are expected
    num_wrong = sum(entry.is_wrong for entry in checked)
    if as_json:
        print_json(
            {
                "data": str(data),
                "ok": num_wrong == 0,
                "unclaimed": unread,
                "checked": [_entry(entry) for entry in checked],
            }
        )
    else:
        _print_checked(checked, unread)
    if num_wrong:
        typer.echo(f"{num_wrong} splits differ or cannot be read", err=True)
        raise typer.Exit(1)


@app.command("lengths")
def lengths(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tasks with two texts, or YAML files of your own; unset: all in --data.", autocompletion=complete_task
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="A folder with published files, or one file with pairs.")] = None,
    text: Annotated[str, typer.Option(help="The two text columns of a file, such as first,second.")] = "",
    split: Annotated[str, typer.Option(help="train, validation or test; unset: validation, if it is there.")] = "",
    backbone: Annotated[str, typer.Option(help="Count the tokens of this backbone; unset: words.")] = "",
    output_dir: Annotated[Path | None, typer.Option(help="Write index.html and lengths.png here.")] = None,
    skip_bad_rows: SkipBadRows = False,
    as_json: Json = False,
) -> None:
    """Compare the lengths of the two texts of pair tasks: by how much the first is longer (figure 5 of IDPG)."""
    from softcue.cli.output import print_json, print_table
    from softcue.cli.pair_lengths import measure, write_lengths
    from softcue.tasks.pair_lengths import length_table

    measured = measure(names or [], data, text, split, backbone, skip_bad_rows)
    if output_dir is not None:
        write_lengths(measured, output_dir)
    if as_json:
        print_json({"data": data, "lengths": [entry.as_dict() for entry in measured]})
        return
    columns, rows = length_table(measured)
    print_table("", columns, rows, numbers_from=3)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


@app.command("docs")
def docs(
    check_file: Annotated[
        Path | None, typer.Option("--check", help="Exit with 1 unless this file is what would be printed.")
    ] = None,
) -> None:
    """Print docs/tasks.md."""
    from softcue.cli.output import compare_or_print
    from softcue.tasks import library_names, library_task
    from softcue.tasks.task_docs import page

    text = page(library_task(name) for name in library_names())
    compare_or_print(text, check_file, "softcue tasks docs")


def _labels(task: Task) -> str:
    return ", ".join(task.label_names) if len(task.labels) <= FEW_LABELS else f"{len(task.labels)} labels"


def _entry(entry: SplitCheck) -> dict[str, object]:
    if entry.status == "absent":
        return {"task": entry.task, "status": entry.status}
    return {
        "task": entry.task,
        "split": entry.split,
        "status": entry.status,
        "files": list(entry.files),
        "rows": entry.rows,
        "labels": entry.labels,
        "note": entry.note,
    }


def _print_checked(checked: list[SplitCheck], unread: list[str]) -> None:
    from softcue.cli.output import print_table

    present = [entry for entry in checked if entry.status != "absent"]
    rows = [
        [entry.task, entry.split, entry.rows, entry.status, ", ".join(entry.files), entry.note] for entry in present
    ]
    print_table("", ["task", "split", "rows", "status", "files", "note"], rows)
    if absent := [entry.task for entry in checked if entry.status == "absent"]:
        typer.echo(f"not there: {', '.join(absent)}")
    if unread:
        typer.echo(f"files that no task has read: {', '.join(unread)}")
