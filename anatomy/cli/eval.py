"""anatomy-eval: what a model makes of a text, every character or token counted once."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, console, note_status, note_trap, printable, run_click
from anatomy.errors import UserError

if TYPE_CHECKING:
    from anatomy.corpus import Corpus
    from anatomy.loading import LoadedModel, Weights
    from anatomy.scoring import Passages, Windows
    from anatomy.tokens import Codec

RECORDED = {"last": "test_loss_nats", "best": "test_loss_nats_at_best"}  # the record's loss of these weights
UNITS = {"nats/{unit}": ".4f", "bits/char": ".4f", "bits/byte": ".4f", "perplexity": ",.3f"}
SHORT = {"character": "char", "token": "token"}
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
    help="Characters or tokens that the model reads at once; may repeat.  [default: as in training; of an imported "
    "model its context, at most 1,024]",
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
    help="Windows read together: a matter of memory and time, not of the loss.  [default: about 8,192 characters or "
    "tokens]",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="CPU threads.  [default: as in training; an imported model takes all cores]",
)
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
    text is predicted and counted once. RUN may also be the folder of an imported model, which needs a --text: then
    lengths, nats and perplexity are by token, bits still by character: of the text as it stands in the file, whatever
    the tokenizer makes of it. Exits with 1 when no loss is a finite number.
    """
    import torch

    from anatomy.loading import load

    if text == "":
        raise click.UsageError("--text needs the name of a file")
    loaded = load(run, weights=weights)
    torch.set_num_threads(threads or loaded.threads)
    result = evaluate(
        loaded,
        text=text,
        lengths=list(dict.fromkeys(lengths)) or [loaded.eval_len],
        stride=stride,
        weights=weights,
        batch_size=batch_size,
    )
    if as_json:
        json.dump(result, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
        print()
    else:
        show(result)
    note_status(loaded.folder, loaded.status)
    note_trap(loaded.folder, loaded.record)
    return FAILED if all(nats is None for nats in result["by_length"].values()) else DONE


def evaluate(
    run: "LoadedModel",
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
    scored = _own_text(run) if text is None else text_of_file(text, run.codec)
    windows = {length: plan_windows(scored.segments, length, stride or length) for length in lengths}
    first = lengths[0]
    num_targets = windows[first].num_targets
    if not num_targets:
        raise UserError(f"--text {text!r}: a lone {scored.codec.unit} leaves nothing to predict; needs at least two")
    unreadable = _unreadable(run, {length: int(plan.lengths.max()) for length, plan in windows.items()})
    notes = list(unreadable.values())
    losses: dict[int, float | None] = dict.fromkeys(lengths)
    for length in (length for length in lengths if length not in unreadable):
        num_read = int(windows[length].lengths.sum())
        with _telling(f"length {length}, stride {stride or length}: {num_targets:,} targets, {num_read:,} to read"):
            of_targets = target_losses(run.model, scored, windows[length], dtype=run.dtype, num_at_once=batch_size)
        losses[length] = finite(mean_nats(of_targets))
        if losses[length] is None:
            notes.append(f"length {length}: the loss is not a finite number; these weights are no model")
    chars_per_target = len(scored.predicted) / num_targets
    chars_per_byte = len(scored.predicted) / max(1, len(scored.predicted.encode("utf-8")))
    rungs, reason = _rungs(run, scored, windows[first], chars_per_target)
    if reason:
        notes.append(reason)
    if losses[first] is None:
        notes.append(f"length {first} was asked for first, so loss_nats and the other units are null")
    notes += scored.notes
    loss = losses[first]
    return {
        "run": run.folder.resolve().name,
        "status": run.status,
        "weights": weights,
        "unit": scored.codec.unit,
        "text": {"name": scored.name, "part": scored.part, "sha256": scored.sha256},
        "num_chars": len(scored.text),
        "num_stretches": len(scored.segments),
        "length": first,
        "stride": stride or first,
        **in_units(loss, chars_per_byte, chars_per_target),
        "num_targets": num_targets,
        "by_length": {str(length): nats for length, nats in losses.items()},
        "stride_by_length": {str(length): stride or length for length in lengths},
        "mean_context_by_length": {
            str(length): None if length in unreadable else plan.mean_context for length, plan in windows.items()
        },
        "rungs": rungs,
        "rung": None if loss is None or rungs["1"] is None else rung_of(loss, rungs, len(scored.codec)),
        "chars_per_target": chars_per_target,
        "chars_per_byte": chars_per_byte,
        "recorded": _recorded(run, weights) if text is None else None,
        "notes": notes,
    }


def in_units(nats: float | None, chars_per_byte: float, chars_per_target: float = 1.0) -> dict[str, float | None]:
    """A loss in nats per target, and the same in bits per character, in bits per UTF-8 byte and as perplexity."""
    if nats is None:
        return dict.fromkeys(("loss_nats", "bits_per_char", "bits_per_byte", "perplexity"))
    bits = nats / math.log(2) / chars_per_target if chars_per_target else None
    return {
        "loss_nats": nats,
        "bits_per_char": bits,
        "bits_per_byte": None if bits is None else bits * chars_per_byte,
        "perplexity": math.exp(nats) if nats < LARGEST_EXPONENT else None,
    }


def text_of_run(run: "LoadedModel") -> "Corpus":
    """The text that a run was trained on, and evaluated on its test part.

    Raises: UserError if the text is gone, or is no longer the same, or if there was none.
    """
    from anatomy.loading import LoadedRun
    from anatomy.runner import corpus_of

    if not isinstance(run, LoadedRun):
        raise UserError(f"{str(run.folder)!r}: an imported model has no text of its own")
    corpus = corpus_of(run.config)
    data = run.record.get("data")
    if not isinstance(data, dict) or data.get("sha256") != corpus.sha256:
        where = corpus.name if run.config.corpus.path is None else repr(run.config.corpus.path)
        raise UserError(f"{where}: not the text that the run was trained on: its sha256 is now {corpus.sha256[:10]}...")
    if corpus.vocabulary != run.vocabulary:
        raise UserError(f"{str(run.folder / 'vocab.json')!r}: not the characters of the run's text")
    return corpus


def _own_text(run: "LoadedModel") -> "Passages":
    """The test part of the text that a run was trained on. Raises UserError as `text_of_run`."""
    from anatomy.scoring import Passages

    try:
        corpus = text_of_run(run)
    except UserError as error:
        raise UserError(f"{error}; to evaluate on another text, type: --text PATH") from None
    notes = ("the text has no test part: validation serves as test",) if corpus.test_is_val else ()
    text, vocabulary = corpus.text("test"), corpus.vocabulary
    predicted = "".join(vocabulary.decode(corpus.ids[start + 1 : stop]) for start, stop in corpus.test)
    return Passages(corpus.name, "test", corpus.sha256, vocabulary, text, predicted, corpus.ids, corpus.test, notes)


def text_of_file(path: str, codec: "Codec") -> "Passages":
    """A file as one stretch of text, all of it to be scored.

    Raises: UserError if it cannot be read or holds unknown characters.
    """
    from anatomy.scoring import Passages
    from anatomy.texts import FILES, load_text

    if os.path.isdir(os.path.expanduser(path)):
        raise UserError(f"--text {path!r}: is a folder; give a file")
    try:
        text = load_text(FILES, path)
    except UserError as error:
        raise UserError(f"--text{str(error).removeprefix('corpus.path')}") from None
    try:
        ids = codec.encode(text.text)
    except UserError as error:
        raise UserError(f"--text {path!r}: {error}") from None
    whole, predicted = ((0, len(ids)),), codec.behind_first(text.text)
    return Passages(path, "whole", text.sha256, codec, text.text, predicted, ids, whole, text.notes)


def _unreadable(run: "LoadedModel", longest: dict[int, int]) -> dict[int, str]:
    """Why the model cannot read windows of some lengths; `longest` has the longest window that each length comes to.

    Raises: UserError if it can read none of them, or if one is beyond all bounds.
    """
    from anatomy.scoring import MAX_WINDOW

    for length, num_read in longest.items():
        if num_read > MAX_WINDOW:
            raise UserError(
                f"--length {length}: windows of {num_read:,} {run.codec.unit}s; it can be {MAX_WINDOW:,} at most, for "
                f"the time that attention takes grows with the square"
            )
    end = run.model.max_len
    if end is None:
        return {}
    unreadable = {
        length: f"length {length}: the model's table of learned positions ends at {end}"
        for length, num_read in longest.items()
        if num_read > end
    }
    if len(unreadable) == len(longest):
        raise UserError(f"{'; '.join(unreadable.values())}; type: --length {end}")
    return unreadable


def _rungs(
    run: "LoadedModel", scored: "Passages", windows: "Windows", chars_per_target: float
) -> tuple[dict[str, Any], str | None]:
    """The tables of n characters, fitted on the run's training part, and xz on the very text; why there are none.

    All are in nats per target, as the model's loss is.
    """
    from anatomy.rungs import MAX_N, NgramTables, xz_nats_per_char
    from anatomy.scoring import ngram_nats

    none = dict.fromkeys(map(str, range(1, MAX_N + 1)))
    xz = {"xz": xz_nats_per_char(scored.text) * chars_per_target}
    try:
        fitted = text_of_run(run)
    except UserError as error:
        return none | xz, f"no n-gram tables, which are fitted on the run's training part: {error}"
    with _telling(f"n-gram tables: fitting on {fitted.num_train_chars:,} characters"):
        tables = NgramTables(fitted.ids, fitted.train, len(fitted.vocabulary))
        return ngram_nats(tables, scored.ids, windows) | xz, None


def _recorded(run: "LoadedModel", weights: str) -> dict[str, float | None]:
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

    out, text, unit = console(), result["text"], result["unit"]
    part = "its test part" if text["part"] == "test" else "the whole file"
    targets = f"{result['num_targets']:,}" + (f" {unit}s" if unit != "character" else "")
    out.print(f"{printable(result['run'])}, {result['weights']} weights")
    out.print(
        f"{printable(text['name'])}, {part}: {result['num_chars']:,} characters in "
        f"{result['num_stretches']:,} stretch{'es' if result['num_stretches'] > 1 else ''}, {targets} predicted\n"
    )
    heads = [head.format(unit=SHORT[unit]) for head in UNITS]
    table = Table(box=None, pad_edge=False)
    for head in ("length", "stride", "mean context", *heads):
        table.add_column(head, justify="right", overflow="fold")
    for length, nats in result["by_length"].items():
        stride, context = result["stride_by_length"][length], result["mean_context_by_length"][length]
        row = f"{int(length):,}", f"{stride:,}", "-" if context is None else f"{context:,.1f}"
        table.add_row(*row, *_cells(nats, result))
    out.print(table)
    beside = Table(box=None, pad_edge=False)
    beside.add_column("beside it", overflow="fold")
    for head in heads:
        beside.add_column(head, justify="right", overflow="fold")
    for name, nats in result["rungs"].items():
        what = f"{name}-gram table" if name.isdigit() else "xz, of this text alone"
        if nats is not None:
            beside.add_row(what, *_cells(nats, result))
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


def _cells(nats: float | None, result: dict[str, Any]) -> list[str]:
    values = in_units(nats, result["chars_per_byte"], result["chars_per_target"]).values()
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
