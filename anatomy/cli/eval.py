"""anatomy-eval: what a run's model makes of a text, every character counted once."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, console, note_status, printable, run_click
from anatomy.errors import UserError

if TYPE_CHECKING:
    from anatomy.corpus import Corpus, Vocabulary
    from anatomy.loading import LoadedRun, Weights
    from anatomy.scoring import Windows

RECORDED = {"last": "test_loss_nats", "best": "test_loss_nats_at_best"}  # the record's loss of these weights
UNITS = {"nats/char": ".4f", "bits/char": ".4f", "bits/byte": ".4f", "perplexity": ",.3f"}
LONGEST_CELL = 12  # of so many characters; a larger number is written with an exponent
LARGEST_EXPONENT = math.log(sys.float_info.max)


@click.command(name="anatomy-eval")
@click.version_option(__version__)
@click.argument("run")
@click.option("--text", metavar="PATH", help="A UTF-8 file to evaluate on.  [default: the run's own test text]")
@click.option(
    "--length",
    "lengths",
    multiple=True,
    metavar="N",
    type=click.IntRange(1),
    help="Characters that the model reads at once; may repeat.  [default: as in training]",
)
@click.option(
    "--stride",
    metavar="N",
    type=click.IntRange(1),
    help="From one window to the next; a smaller one gives every target more context.  [default: the length]",
)
@click.option(
    "--weights", type=click.Choice(["last", "best"]), default="last", show_default=True, help="Which weights."
)
@click.option(
    "--batch-size",
    metavar="N",
    type=click.IntRange(1),
    help="Windows read together: a matter of memory and time, not of the loss.  [default: about 8,192 characters]",
)
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), help="CPU threads.  [default: as in training]")
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def command(
    run: str,
    text: str | None,
    lengths: tuple[int, ...],
    stride: int | None,
    weights: "Weights",
    batch_size: int | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Evaluate the run in the folder RUN: nats and bits per character, perplexity, n-gram tables beside them.

    Windows of LENGTH characters begin every STRIDE characters, and every character but the first of each stretch of
    text is predicted and counted once. Exits with 1 when no loss is a finite number.
    """
    import torch

    from anatomy.loading import load

    if text == "":
        raise click.UsageError("--text needs the name of a file")
    loaded = load(run, weights=weights)
    torch.set_num_threads(threads or min(loaded.config.train.threads, os.cpu_count() or 1))
    result = evaluate(
        loaded,
        text=text,
        lengths=list(dict.fromkeys(lengths)) or [loaded.config.model.ctx_len],
        stride=stride,
        weights=weights,
        batch_size=batch_size,
    )
    if as_json:
        json.dump(result, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
        print()
    else:
        show(result)
    note_status(loaded.folder, loaded.record["status"])
    return FAILED if all(nats is None for nats in result["by_length"].values()) else DONE


def evaluate(
    run: "LoadedRun",
    *,
    text: str | None,
    lengths: list[int],
    stride: int | None,
    weights: "Weights",
    batch_size: int | None,
) -> dict[str, Any]:
    """All that the command finds out, as it is written in JSON; what cannot be had is None, and a note says why.

    Raises: UserError if there is nothing to score, or the model can read it at none of the lengths.
    """
    from anatomy.evaluation import mean_nats
    from anatomy.report.measure import rung_of
    from anatomy.runs import finite
    from anatomy.scoring import plan_windows, target_losses

    if stride is not None and stride > min(lengths):
        raise UserError(
            f"--stride {stride}: must not be above the length ({min(lengths)}), or targets would be skipped"
        )
    corpus = _text_of_run(run) if text is None else text_of_file(text, run.vocabulary)
    windows = {length: plan_windows(corpus.test, length, stride or length) for length in lengths}
    first = lengths[0]
    num_targets = windows[first].num_targets
    if not num_targets:
        raise UserError(f"--text {text!r}: a lone character leaves nothing to predict; needs at least two")
    unreadable = _unreadable(run, {length: int(plan.lengths.max()) for length, plan in windows.items()})
    notes = list(unreadable.values())
    losses: dict[int, float | None] = dict.fromkeys(lengths)
    for length in (length for length in lengths if length not in unreadable):
        num_read = int(windows[length].lengths.sum())
        with _telling(f"length {length}, stride {stride or length}: {num_targets:,} targets, {num_read:,} to read"):
            scored = target_losses(
                run.model, corpus, windows[length], dtype=run.config.train.dtype, num_at_once=batch_size
            )
        losses[length] = finite(mean_nats(scored))
        if losses[length] is None:
            notes.append(f"length {length}: the loss is not a finite number; these weights are no model")
    rungs, reason = _rungs(run, corpus, windows[first], is_own=text is None)
    if reason:
        notes.append(reason)
    if losses[first] is None:
        notes.append(f"length {first} was asked for first, so loss_nats and the other units are null")
    if text is not None:
        notes += corpus.notes
    elif corpus.test_is_val:
        notes.append("the text has no test part: validation serves as test")
    chars_per_byte = num_targets / _num_bytes_of_targets(corpus)
    loss = losses[first]
    return {
        "run": run.folder.resolve().name,
        "status": run.record["status"],
        "weights": weights,
        "text": {"name": corpus.name, "part": "test" if text is None else "whole", "sha256": corpus.sha256},
        "num_chars": corpus.num_test_chars,
        "num_stretches": len(corpus.test),
        "length": first,
        "stride": stride or first,
        **in_units(loss, chars_per_byte),
        "num_targets": num_targets,
        "by_length": {str(length): nats for length, nats in losses.items()},
        "stride_by_length": {str(length): stride or length for length in lengths},
        "mean_context_by_length": {
            str(length): None if length in unreadable else plan.mean_context for length, plan in windows.items()
        },
        "rungs": rungs,
        "rung": None if loss is None or rungs["1"] is None else rung_of(loss, rungs, len(run.vocabulary)),
        "chars_per_byte": chars_per_byte,
        "recorded": _recorded(run, weights) if text is None else None,
        "notes": notes,
    }


def in_units(nats: float | None, chars_per_byte: float) -> dict[str, float | None]:
    """A loss in nats per character, and the same in bits per character, in bits per UTF-8 byte and as perplexity."""
    if nats is None:
        return dict.fromkeys(("loss_nats", "bits_per_char", "bits_per_byte", "perplexity"))
    bits = nats / math.log(2)
    return {
        "loss_nats": nats,
        "bits_per_char": bits,
        "bits_per_byte": bits * chars_per_byte,
        "perplexity": math.exp(nats) if nats < LARGEST_EXPONENT else None,
    }


def text_of_run(run: "LoadedRun") -> "Corpus":
    """The text that a run was trained on, and evaluated on its test part.

    Raises: UserError if the text is gone, or is no longer the same.
    """
    from anatomy.runner import corpus_of

    corpus = corpus_of(run.config)
    data = run.record.get("data")
    if not isinstance(data, dict) or data.get("sha256") != corpus.sha256:
        where = corpus.name if run.config.corpus.path is None else repr(run.config.corpus.path)
        raise UserError(f"{where}: not the text that the run was trained on: its sha256 is now {corpus.sha256[:10]}...")
    if corpus.vocabulary != run.vocabulary:
        raise UserError(f"{str(run.folder / 'vocab.json')!r}: not the characters of the run's text")
    return corpus


def _text_of_run(run: "LoadedRun") -> "Corpus":
    try:
        return text_of_run(run)
    except UserError as error:
        raise UserError(f"{error}; to evaluate on another text, type: --text PATH") from None


def text_of_file(path: str, vocabulary: "Vocabulary") -> "Corpus":
    """A file as one stretch of text, all of it to be scored, in the ids of a vocabulary.

    Raises: UserError if it cannot be read or holds unknown characters.
    """
    from anatomy.corpus import Corpus
    from anatomy.texts import FILES, load_text

    if os.path.isdir(os.path.expanduser(path)):
        raise UserError(f"--text {path!r}: is a folder; give a file")
    try:
        text = load_text(FILES, path)
    except UserError as error:
        raise UserError(f"--text{str(error).removeprefix('corpus.path')}") from None
    try:
        ids = vocabulary.encode(text.text)
    except UserError as error:
        raise UserError(f"--text {path!r}: {error}") from None
    return Corpus(path, text.sha256, vocabulary, ids, "tail", (), (), ((0, len(ids)),), text.notes)


def _unreadable(run: "LoadedRun", longest: dict[int, int]) -> dict[int, str]:
    """Why the model cannot read windows of some lengths; `longest` has the longest window that each length comes to.

    Raises: UserError if it can read none of them, or if one is beyond all bounds.
    """
    from anatomy.scoring import MAX_WINDOW

    for length, num_chars in longest.items():
        if num_chars > MAX_WINDOW:
            raise UserError(
                f"--length {length}: windows of {num_chars:,} characters; it can be {MAX_WINDOW:,} at most, for the "
                f"time that attention takes grows with the square"
            )
    end = run.model.max_len
    if end is None:
        return {}
    unreadable = {
        length: f"length {length}: the model's table of learned positions ends at {end}"
        for length, num_chars in longest.items()
        if num_chars > end
    }
    if len(unreadable) == len(longest):
        raise UserError(f"{'; '.join(unreadable.values())}; type: --length {end}")
    return unreadable


def _rungs(
    run: "LoadedRun", corpus: "Corpus", windows: "Windows", *, is_own: bool
) -> tuple[dict[str, Any], str | None]:
    """The tables of n characters, fitted on the run's training part, and xz on the very text; why there are none."""
    from anatomy.rungs import MAX_N, NgramTables, xz_nats_per_char
    from anatomy.scoring import ngram_nats

    none = dict.fromkeys(map(str, range(1, MAX_N + 1)))
    xz = {"xz": xz_nats_per_char(corpus.text("test"))}
    try:
        fitted = corpus if is_own else text_of_run(run)
    except UserError as error:
        return none | xz, f"no n-gram tables, which are fitted on the run's training part: {error}"
    with _telling(f"n-gram tables: fitting on {fitted.num_train_chars:,} characters"):
        tables = NgramTables(fitted.ids, fitted.train, len(fitted.vocabulary))
        return ngram_nats(tables, corpus, windows) | xz, None


def _num_bytes_of_targets(corpus: "Corpus") -> int:
    import numpy as np

    num_bytes = np.array([len(char.encode("utf-8")) for char in corpus.vocabulary.chars])
    return sum(int(num_bytes[corpus.ids[start + 1 : stop]].sum()) for start, stop in corpus.test)


def _recorded(run: "LoadedRun", weights: str) -> dict[str, float | None]:
    """The record's own test loss of these weights; None for what is no possible value."""
    nats, num_targets = run.record.get(RECORDED[weights]), run.record.get("num_test_targets")
    return {
        "test_loss_nats": nats if isinstance(nats, float) and math.isfinite(nats) else None,
        "num_test_targets": num_targets if isinstance(num_targets, int) else None,
    }


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Say on a terminal what takes a while."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(what):
        yield


def show(result: dict[str, Any]) -> None:
    """Print the losses by length, the rungs in the same units, and what there is to say of them."""
    from rich.table import Table

    out, text, targets = console(), result["text"], f"{result['num_targets']:,}"
    part = "its test part" if text["part"] == "test" else "the whole file"
    out.print(f"{printable(result['run'])}, {result['weights']} weights")
    out.print(
        f"{printable(text['name'])}, {part}: {result['num_chars']:,} characters in "
        f"{result['num_stretches']:,} stretch{'es' if result['num_stretches'] > 1 else ''}, {targets} predicted\n"
    )
    table = Table(box=None, pad_edge=False)
    for head in ("length", "stride", "mean context", *UNITS):
        table.add_column(head, justify="right", overflow="fold")
    for length, nats in result["by_length"].items():
        stride, context = result["stride_by_length"][length], result["mean_context_by_length"][length]
        row = f"{int(length):,}", f"{stride:,}", "-" if context is None else f"{context:,.1f}"
        table.add_row(*row, *_cells(nats, result["chars_per_byte"]))
    out.print(table)
    beside = Table(box=None, pad_edge=False)
    beside.add_column("beside it", overflow="fold")
    for head in UNITS:
        beside.add_column(head, justify="right", overflow="fold")
    for name, nats in result["rungs"].items():
        what = f"{name}-gram table" if name.isdigit() else "xz, of this text alone"
        beside.add_row(what, *_cells(nats, result["chars_per_byte"]))
    out.print()
    out.print(beside)
    out.print()
    if result["rung"] is not None:
        out.print(f"at length {result['length']:,} the model stands {place(result['rung'])}")
    recorded = result["recorded"]
    if recorded and None not in recorded.values():
        out.print(
            f"the record says {recorded['test_loss_nats']:.4f} nats, over {recorded['num_test_targets']:,} targets: "
            "of whole windows as long as in training, evenly spread over the test part; here every character counts"
        )
    for note in result["notes"]:
        out.print(f"note: {printable(note)}")


def _cells(nats: float | None, chars_per_byte: float) -> list[str]:
    values = in_units(nats, chars_per_byte).values()
    cells = ["-" if value is None else format(value, form) for value, form in zip(values, UNITS.values(), strict=True)]
    return [cell if len(cell) <= LONGEST_CELL else f"{float(cell.replace(',', '')):.3e}" for cell in cells]


def place(rung: float) -> str:
    """Where a rung (see report.measure.rung_of) lies, in words."""
    from anatomy.rungs import MAX_N

    below = int(rung)
    if rung == 0:
        return "no better than a guess among the characters"
    if below == MAX_N:
        return "below all tables"
    if below == 0:
        return "between a guess among the characters and the 1-gram table"
    return f"between the best table of up to {below} character{'s' * (below > 1)} and that of up to {below + 1}"


def main() -> None:
    """Run the command line."""
    run_click(command)


if __name__ == "__main__":
    main()
