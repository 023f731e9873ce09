"""anatomy-sample: let runs and imported models speak."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, console, naming_options, note_status, note_trap, printable, run_click
from anatomy.errors import UserError

if TYPE_CHECKING:
    from anatomy.loading import LoadedModel, Weights
    from anatomy.sample import Sample

MAX_SAMPLES, MAX_CHARS = 10_000, 1_000_000  # of one command: all that it writes is held in memory
COLUMN_WIDTH = 36  # models stand side by side where each has room for so much


@click.command(name="anatomy-sample")
@click.version_option(__version__)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--prompt",
    default="",
    metavar="TEXT",
    help="What to go on with; empty: the start of a text. A line end in it: $'a\\nb'.",
)
@click.option(
    "--tokens",
    "num_tokens",
    default=200,
    show_default=True,
    type=click.IntRange(0),
    help="Characters, or an imported model's tokens, to write behind the prompt.",
)
@click.option("--temperature", default=0.8, show_default=True, help="0 takes the likeliest token each time.")
@click.option("--top-k", default=None, type=click.IntRange(1), help="Only the k likeliest.")
@click.option("--top-p", default=None, type=float, help="Only the likeliest whose mass first reaches p.")
@click.option("--min-p", default=None, type=float, help="Only those at least p times as likely as the likeliest.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Another seed, another text."
)
@click.option(
    "--num-samples", default=1, show_default=True, type=click.IntRange(1, MAX_SAMPLES), help="Texts of each run."
)
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help="End a text behind this; may repeat.")
@click.option("--no-cache", is_flag=True, help="Read the whole text anew for each token: the slow way.")
@click.option(
    "--weights",
    default="last",
    show_default=True,
    type=click.Choice(("last", "best")),
    help="The weights at the end, or those of the lowest validation loss.",
)
@click.option(
    "--window",
    default=None,
    type=click.IntRange(1),
    help="Characters or tokens a model sees.  [default: those it was trained at]",
)
@click.option("--json", "as_json", is_flag=True, help="The texts and their speeds as data.")
def command(
    folders: tuple[str, ...],
    prompt: str,
    num_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int,
    num_samples: int,
    stops: tuple[str, ...],
    no_cache: bool,
    weights: "Weights",
    window: int | None,
    as_json: bool,
) -> int:
    """Let runs go on with a text: RUN is the folder of one, or of an imported model; several speak side by side.

    A run writes characters, an imported model its tokenizer's tokens: parts of words, mostly. One that stands for an
    end is written as it is spelled and ends nothing; --stop '<|endoftext|>' ends there.

    A text that outgrows the window loses its older half out of the model's sight; what is printed stays whole.
    Exits with 1 when a model's numbers are not finite, so that there is nothing to draw from.
    """
    _check_sizes(len(folders), num_samples, len(prompt), num_tokens)
    for stop in stops:
        _check_stop(stop)

    import torch

    from anatomy.loading import load
    from anatomy.sample import Watch, sample
    from anatomy.sampling import Knobs, NotFinite

    with naming_options():
        knobs = Knobs(temperature, top_k, top_p, min_p)
    runs = [load(folder, weights=weights) for folder in folders]
    speakers = [
        Speaker(run, heading, window or run.context) for run, heading in zip(runs, _headings(runs), strict=True)
    ]
    for speaker in speakers:
        _check_can_speak(speaker, prompt, f"{str(speaker.run.folder)!r}: " if len(runs) > 1 else "")
    for run in runs:
        note_status(run.folder, run.status)
        note_trap(run.folder, run.record)
    _note_beyond_training(runs, window)
    _note_stops(runs, stops)

    say = partial(
        sample,
        prompt=prompt,
        num_tokens=num_tokens,
        num_samples=num_samples,
        knobs=knobs,
        seed=seed,
        use_cache=not no_cache,
        stop=stops,
    )

    def speak(speaker: Speaker, watch: Watch | None = None) -> "list[Sample]":
        run = speaker.run
        torch.set_num_threads(run.threads)
        return say(run.model, run.codec, window=speaker.window, watch=watch)

    side_by_side = not as_json and sys.stdout.isatty() and 1 < len(runs) <= console().width // COLUMN_WIDTH
    spoken: list[list[Sample]] = []
    try:
        for speaker in speakers:
            if as_json or side_by_side:
                spoken.append(speak(speaker))
            elif len(runs) == num_samples == 1:
                try:
                    _write(prompt)
                    spoken.append(speak(speaker, lambda _, piece: _write(piece)))
                finally:
                    _write("\n")
            else:
                spoken.append(speak(speaker))
                _write_below(speaker.heading if len(runs) > 1 else "", spoken[-1])
    except NotFinite as error:
        click.echo(f"{str(runs[len(spoken)].folder)!r}: {error}", err=True)
        return FAILED
    if as_json:
        settings = {"seed": seed, "weights": weights, **asdict(knobs), "stop": stops, "use_cache": not no_cache}
        rows = [
            asdict(text)
            | {"run": speaker.name, "status": speaker.run.status}
            | {"index": index, "window": speaker.window, **settings}
            for speaker, texts in zip(speakers, spoken, strict=True)
            for index, text in enumerate(texts)
        ]
        json.dump({"samples": rows}, sys.stdout, indent=1, allow_nan=False)
        print()
    elif side_by_side:
        _show_beside(speakers, spoken)
    sys.stdout.flush()
    _note_cut(speakers, spoken)
    if sys.stderr.isatty():
        for speaker, texts in zip(speakers, spoken, strict=True):
            click.echo((f"{speaker.heading}: " if len(runs) > 1 else "") + _speed(texts), err=True)
    return DONE


@dataclass(frozen=True)
class Speaker:
    """A model that is asked to speak, what it is called beside the others, and how many tokens it sees."""

    run: "LoadedModel"
    heading: str
    window: int

    @property
    def name(self) -> str:
        return self.run.folder.resolve().name


# ------------------------------------------------------------------------------------------------ what is asked for


def _check_sizes(num_runs: int, num_samples: int, num_prompt: int, num_tokens: int) -> None:
    num_chars = num_runs * num_samples * (num_prompt + num_tokens)
    if num_chars > MAX_CHARS:
        raise UserError(
            f"--tokens {num_tokens} --num-samples {num_samples}: {num_chars:,} with the characters of the prompts, of "
            f"all runs; one command writes at most {MAX_CHARS:,}: ask for fewer"
        )


def _check_stop(stop: str) -> None:
    if not stop:
        raise UserError("--stop: an empty one would end every text at once; give the characters to stop at")
    try:
        stop.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"--stop {stop!r}: a byte that is not UTF-8 at index {error.start}; leave it out") from None


def _check_can_speak(speaker: Speaker, prompt: str, where: str) -> None:
    from anatomy.sample import check_window, prompt_ids

    vocabulary = speaker.run.codec
    try:
        with naming_options():
            check_window(speaker.run.model, speaker.window)
    except UserError as error:
        raise UserError(f"{where}{error}") from None
    try:
        prompt_ids(vocabulary, prompt)
    except UserError as error:
        raise UserError(f"{where}--prompt: {error}") from None


def _headings(runs: "Sequence[LoadedModel]") -> list[str]:
    """What tells the runs apart: the parts and seeds in which they differ, else their folders' names.

    An imported model differs in more than its parts, so beside one it is the folders' names.
    """
    named = [run.labels for run in runs]
    differing = [key for key in named[0] if len({names.get(key) for names in named}) > 1]
    headings = [printable(" ".join(f"{key}={names[key]}" for key in differing if key in names)) for names in named]
    if len(set(headings)) < len(runs) or any(run.status is None for run in runs):
        return [printable(run.folder.resolve().name) for run in runs]
    return headings


# ------------------------------------------------------------------------------------------------ what is shown


def _write(text: str) -> None:
    """As it is; on a terminal harmless."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()  # whoever reads sees each piece as it comes


def _write_below(heading: str, texts: "Sequence[Sample]") -> None:
    for index, text in enumerate(texts):
        of_index = f"sample {index}" if len(texts) > 1 else ""
        _write(f"== {', '.join(filter(None, (heading, of_index)))} ==\n{text.text}\n\n")


def _show_beside(speakers: Sequence[Speaker], spoken: "Sequence[Sequence[Sample]]") -> None:
    from rich.table import Table
    from rich.text import Text

    out, gap, index_heading = console(), 2, "sample"
    has_many = len(spoken[0]) > 1
    room = out.width - (len(index_heading) + gap if has_many else 0)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 1, 0))
    if has_many:
        table.add_column(index_heading)
    for speaker in speakers:
        table.add_column(Text(speaker.heading), width=room // len(speakers) - gap, overflow="fold")
    for index, texts in enumerate(zip(*spoken, strict=True)):
        table.add_row(*([str(index)] if has_many else []), *(Text(printable(text.text)) for text in texts))
    out.print(table)


def _speed(texts: "Sequence[Sample]") -> str:
    num_tokens = sum(text.num_tokens for text in texts)
    # Each was drawn at the speed of its whole batch, so their shares of time add up.
    drawing_s = sum(text.num_tokens / text.tokens_per_s for text in texts if text.tokens_per_s)
    speed = f", {num_tokens / drawing_s:,.0f} a second" if drawing_s else ""
    cache_bytes = max(text.kv_cache_bytes for text in texts)
    return f"{num_tokens:,} tokens{speed}, " + (f"cache {cache_bytes:,} bytes a text" if cache_bytes else "no cache")


def _note_beyond_training(runs: "Sequence[LoadedModel]", window: int | None) -> None:
    contexts = sorted({run.context for run in runs if window and run.context < window})
    if contexts:
        trained = ", ".join(map(str, contexts))
        click.echo(
            f"note: a window of {window} is longer than the context of training ({trained}): a model never learned "
            f"what lies so far back",
            err=True,
        )


def _note_stops(runs: "Sequence[LoadedModel]", stops: Sequence[str]) -> None:
    for run in runs:
        for stop in stops:
            if unknown := run.codec.unknown(stop):
                named = ", ".join(f"{char!r} (U+{ord(char):04X})" for char in unknown)
                click.echo(f"note: --stop {stop!r}: {str(run.folder)!r} never writes {named}, so never stops", err=True)


def _note_cut(speakers: Sequence[Speaker], spoken: "Sequence[Sequence[Sample]]") -> None:
    cut = [speaker for speaker, texts in zip(speakers, spoken, strict=True) if any(text.is_cut for text in texts)]
    for window, unit in sorted({(speaker.window, speaker.run.codec.unit) for speaker in cut}):
        is_table = any(speaker.run.model.max_len == window for speaker in cut)
        click.echo(
            f"note: the text outgrew the window of {window} {unit}s"
            f"{', where the table of learned positions ends' if is_table else ''}; from then on only its last "
            f"{max(1, window // 2)} to {window} were read",
            err=True,
        )


def main() -> None:
    """Run the command line."""
    run_click(command)


if __name__ == "__main__":
    main()
