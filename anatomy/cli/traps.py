"""anatomy-convert --trap: a model loaded wrongly, beside the right one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anatomy.cli.common import DONE, FAILED, console, printable
from anatomy.errors import UserError

if TYPE_CHECKING:
    from anatomy.checkpoints.importing import PublishedModel
    from anatomy.checkpoints.traps import Outcome, Trap
    from anatomy.model import Transformer
    from anatomy.tokens import Tokens

TEXT = """\
The capital of France is Paris, and the river that runs through it is the Seine. Many bridges cross it, most of them \
built of stone, and the oldest of all is called the New Bridge. It was opened four hundred years ago, and it was the \
first to bear no houses, so that people who crossed could see the water on both sides. In the evening they still stop \
there, lean on the wall and watch the boats go by under their feet.
"""
PROMPT = "The capital of France is"
CONTINUED_TOKENS = 16
WRITTEN_TOKENS = 96  # of a text that the model writes itself
ALL = "all"


@dataclass(frozen=True, eq=False)
class Reading:
    """What the models are given to read.

    told        what text it is
    codec       None where the model came without a tokenizer
    prompt_ids  what they go on with; empty where they are not asked to
    """

    ids: list[int]
    told: str
    codec: "Tokens | None"
    prompt: str
    prompt_ids: list[int]


def spring(
    source: str, path: Path, folder: str | None, names: Sequence[str], text: str | None, prompt: str | None
) -> int:
    """Show what wrong ways to load the model at `path` cost, and write a wrong one to `folder`, if there is one.

    Raises: UserError, one line, for a name that no trap has, for what cannot be read, and for a wrong model that is to
            be written and is none.
    """
    from anatomy.checkpoints.traps import filled, in_memory, published_model, read, write_wrong
    from anatomy.sampling import NotFinite

    traps = _traps(names)
    if folder is not None and len(traps) > 1:
        raise UserError(f"--trap: {len(traps)} wrong models do not fit into {folder!r}; name one, or leave DST out")
    published = published_model(path)
    if folder is not None:
        write_wrong(published, traps[0], Path(folder))
    held = in_memory(published)
    right_model = filled(held)
    try:
        reading = _reading(published, right_model, text, prompt)
        given = reading.ids, published.composition.model.ctx_len, reading.prompt_ids, CONTINUED_TOKENS
        right = read(right_model, *given)
        wrong = {trap: read(filled(trap.spoil(held)), *given) for trap in traps if not trap.spared(published)}
    except NotFinite as error:
        click.echo(f"{source!r}: {error}", err=True)
        return FAILED
    _show(source, published, reading, right, {trap: wrong.get(trap) for trap in traps})
    if folder is not None:
        click.echo(f"{folder}: the model of {traps[0].name}; go on with: anatomy-sample {folder} --prompt TEXT")
    return DONE


def _traps(names: Sequence[str]) -> "list[Trap]":
    from anatomy.checkpoints.traps import TRAPS
    from anatomy.config import did_you_mean

    for name in names:
        if name not in (ALL, *TRAPS):
            raise UserError(
                f"--trap {name!r}: there is {', '.join(TRAPS)}, and {ALL}.{did_you_mean(name, (ALL, *TRAPS))}"
            )
    return [TRAPS[name] for name in dict.fromkeys(TRAPS if ALL in names else names)]


def _reading(published: "PublishedModel", right: "Transformer", text: str | None, prompt: str | None) -> Reading:
    """Text and prompt as a model's tokens. Raises UserError for one of the user's that it cannot read."""
    from anatomy.checkpoints.converting import tokenizer_of
    from anatomy.checkpoints.importing import named_tokens
    from anatomy.checkpoints.tokenizers_of import NoTokenizer
    from anatomy.tokens import Tokens

    start_id = next(iter(named_tokens(published, "bos_token_id")), None)
    context = published.composition.model.ctx_len
    try:
        codec = Tokens(tokenizer_of(published), published.model.num_symbols, start_id)
    except NoTokenizer as error:
        if text is not None or prompt is not None:
            where = published.source.where
            raise UserError(f"{where}: has no tokenizer ({error}), so it reads no --text and no --prompt") from None
        return Reading(*_written(right, start_id, context, f"it has no tokenizer ({error})"), None, "", [])
    if text is not None:
        ids, told = _text_of(text, codec)
    elif unknown := codec.unknown(TEXT):
        ids, told = _written(right, start_id, context, f"its tokenizer has no {unknown[0]!r}, which our text has")
    else:
        ids, told = codec.encode(TEXT).tolist(), "a text of our own"
    return Reading(ids, told, codec, PROMPT if prompt is None else prompt, _prompt_ids(codec, prompt, context))


def _text_of(path: str, codec: "Tokens") -> tuple[list[int], str]:
    from anatomy.checkpoints.traps import MAX_TOKENS
    from anatomy.cli.eval import text_of_file

    ids = text_of_file(path, codec).ids.tolist()
    if len(ids) < 2:
        raise UserError(f"--text {path!r}: a lone token leaves nothing to predict; needs at least two")
    told = repr(path) if len(ids) <= MAX_TOKENS else f"the first of {path!r}, which has {len(ids):,}"
    return ids[:MAX_TOKENS], told


def _written(right: "Transformer", start_id: int | None, context: int, reason: str) -> tuple[list[int], str]:
    """A text that the right model writes itself, where it cannot read ours."""
    from anatomy.checkpoints.traps import go_on

    first = [start_id or 0]
    ids = first + go_on(right, first, min(WRITTEN_TOKENS, context - 1), temperature=1.0)
    return ids, f"a text that the right model wrote itself, for {reason}"


def _prompt_ids(codec: "Tokens", prompt: str | None, context: int) -> list[int]:
    from anatomy.sample import prompt_ids

    if prompt is None and codec.unknown(PROMPT):
        return []
    try:
        ids = prompt_ids(codec, PROMPT if prompt is None else prompt)
    except UserError as error:
        raise UserError(f"--prompt: {error}") from None
    if len(ids) + CONTINUED_TOKENS <= context:
        return ids
    if prompt is None:
        return []
    raise UserError(
        f"--prompt: has {len(ids):,} tokens; the model reads {context:,}, of which {CONTINUED_TOKENS} are to follow it"
    )


# ------------------------------------------------------------------------------------------------ what is shown


def _show(
    source: str,
    published: "PublishedModel",
    reading: Reading,
    right: "Outcome",
    wrong: "Mapping[Trap, Outcome | None]",
) -> None:
    from rich.table import Table

    from anatomy.checkpoints.traps import cost

    out, codec = console(), reading.codec
    num_symbols = published.model.num_symbols
    out.print(printable(f"{source}: {published.family}; it reads {len(reading.ids):,} tokens, {reading.told}"))
    out.print(f"a guess among its {num_symbols:,} tokens loses {math.log(num_symbols):.3f} nats\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("loaded", no_wrap=True)
    for heading in ("nats per token", "lost", "in the 1st half", "in the 2nd half", "same next token"):
        table.add_column(heading, justify="right")
    speaks = codec is not None and bool(reading.prompt_ids)
    if speaks:
        table.add_column(printable(f"goes on with {reading.prompt!r}"), overflow="fold")

    def row(name: str, outcome: "Outcome", *cells: str) -> None:
        said = [repr(codec.decode(outcome.written))] if codec is not None and speaks else []
        table.add_row(name, f"{float(outcome.losses_nats.mean()):.3f}", *cells, *said)

    row("right", right, "", "", "", "")
    harmless, remarks = [], []
    for trap, outcome in wrong.items():
        if outcome is None:
            harmless.append(f"{trap.name}: nothing to get wrong in this model: {trap.spared(published)}")
            continue
        remarks.append(f"{trap.name}: {trap.mistake}")
        lost = cost(outcome, right)
        row(
            trap.name,
            outcome,
            *(f"{nats:+.3f}" if math.isfinite(nats) else "-" for nats in (lost.lost, lost.lost_early, lost.lost_late)),
            f"{lost.same_share:.0%}",
        )
        if lost.is_right_at_first:
            remarks.append(
                f"{trap.name}: behind the first token, which sees itself alone, its logits are the right ones"
            )
    out.print(table)
    out.print()
    for line in (*remarks, *harmless):
        out.print(line)
