"""How explanations look in a terminal: one model in full, several side by side, a walk through one."""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anatomy.about import about
from anatomy.axes import AXES, PART_AXES, part_of
from anatomy.cli.common import printable
from anatomy.explaining import COMPARED_BASES, Explanation, Pair
from anatomy.tracing import Shape, Stretch, Trace

UNKNOWN = "—"  # not told by anybody
NOT_THERE = "n/a"  # past the last position
MAX_PAIRS = 16  # that are listed one by one
MAX_VALUE_CHARS = 40
MAX_HEADING_CHARS = 24
GAP = 2  # blanks between columns
Row = tuple[str, ...]


def show_one(out: Console, told: Explanation) -> None:
    """Print all that is known of one model."""
    _heading(out, told)
    _section(out, "parts, and what the bases have where they differ", _parts_table(told))
    _section(out, "parameters", _params_table(told))
    _section(out, "costs", _costs_table(told))
    _fields(out, told)
    if told.pairs:
        _section(out, _rope_title(told), _rope_table(told))


def _heading(out: Console, told: Explanation) -> None:
    subject, sizes = told.subject, told.sizes
    out.print(Text(printable(subject.name), style="bold"))
    for line in (subject.what, subject.source):
        if line and line != subject.name:
            out.print(printable(line))
    shared = f", {sizes['n_kv_head']:,} of keys and values" if sizes["n_kv_head"] != sizes["n_head"] else ""
    out.print(
        f"{sizes['n_layer']:,} blocks, {sizes['d_model']:,} wide; {sizes['n_head']:,} heads of {sizes['head_width']:,} "
        f"channels{shared}; FFN {sizes['ffn_hidden']:,}; vocabulary {sizes['vocab_size']:,}; context "
        f"{sizes['ctx_len']:,}; {_short(told.num_params)} parameters"
    )


def _section(out: Console, title: str, table: Table) -> None:
    out.print()
    out.print(Text(title, style="bold"))
    out.print(table)


def _table(*columns: str, right: Iterable[int] = (), folded: Iterable[int] = ()) -> Table:
    """A table without lines. Columns are headed; those of `folded` give way where it is narrow."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="")
    for place, heading in enumerate(columns):
        table.add_column(
            heading,
            justify="right" if place in right else "left",
            no_wrap=place not in folded,
            overflow="fold",
        )
    return table


# ------------------------------------------------------------------------------------------------ one model


def _parts_table(told: Explanation) -> Table:
    table = _table("axis", "part", *COMPARED_BASES, "what it is", folded=(5,))
    for axis in AXES:
        mine = told.parts[axis]
        others = [part_of(base, axis) if axis in told.distance[base] else "=" for base in COMPARED_BASES]
        what = about(axis, mine).what if mine is not None and axis in PART_AXES else VALUES.get((axis, mine), "")
        table.add_row(axis, UNKNOWN if mine is None else mine, *(others if mine else [""] * len(others)), what)
    table.add_row("differ in", "", *(_count(len(told.distance[base]), "part") for base in COMPARED_BASES), "")
    return table


VALUES = {
    ("bias", "none"): "The blocks' matrices have no biases.",
    ("bias", "qkv"): "Queries, keys and values have biases.",
    ("bias", "attn"): "The four matrices of attention have biases.",
    ("bias", "ffn"): "The matrices of the FFN have biases.",
    ("bias", "all"): "All matrices of the blocks have biases.",
    ("tying", "tied"): "One matrix serves as input and output.",
    ("tying", "untied"): "Input and output have a matrix each.",
    ("init", None): "How its weights began is not part of what is published.",
    ("init", "normal"): "All matrices begin at a standard deviation of 0.02.",
    ("init", "gpt2"): "As normal, what writes into the stream divided by sqrt(2 x layers).",
    ("init", "xavier"): "Uniform, by the sum of a matrix's two sides.",
    ("init", "torch"): "As PyTorch's own layers begin.",
}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _params_table(told: Explanation) -> Table:
    block, all_of, num_layers = told.block, told.num_params_by_axis, told.sizes["n_layer"]
    is_tied = told.parts["tying"] == "tied"
    table = _table(
        "", "one block", _count(num_layers, "block"), "whole model", "share", right=(1, 2, 3, 4), folded=(0,)
    )
    for name, of_block, axis in (
        ("attention", block.attn, "attn"),
        ("FFN", block.ffn, "ffn"),
        ("norms", block.norm, "norm"),
        ("positions", 0, "pos"),
        ("input matrix", 0, "embed"),
        ("output matrix", 0, "output"),
    ):
        inside = (f"{of_block:,}", f"{of_block * num_layers:,}") if of_block else ("", "")
        in_all = (f"{all_of[axis]:,}", f"{all_of[axis] / told.num_params:.1%}")
        table.add_row(name, *inside, *(("the input's", "") if axis == "output" and is_tied else in_all))
    total = (f"{block.total:,}", f"{block.total * num_layers:,}", f"{told.num_params:,}", "100.0%")
    table.add_row("together", *total, style="bold")
    table.add_row("vocabulary's share", "", "", "", f"{told.vocabulary_share:.1%}")
    return table


def _costs_table(told: Explanation) -> Table:
    table = _table("", "", "", right=(1,), folded=(2,))
    sizes, context = told.sizes, told.context
    for name, num_bytes in told.weight_bytes.items():
        table.add_row(f"weights in {name}", _bytes(num_bytes), "" if name != "fp32" else "all parameters, nothing else")
    windowed = sum(window is not None for window in told.windows)
    if windowed:
        seen = next(window for window in told.windows if window is not None)
        table.add_row("window", f"{seen:,} tokens", f"in {windowed:,} of {_count(sizes['n_layer'], 'block')}")
    formula = (
        f"2 x {sizes['n_layer']:,} blocks x {sizes['n_kv_head']:,} heads x {sizes['head_width']:,} channels x 2 bytes"
    )
    table.add_row("cache for a token", _bytes(told.kv_bytes_per_token), formula)
    limit = "" if told.has_context else f"there are {told.model.max_len:,} positions"
    kept = "" if told.kv_bytes is None else _bytes(told.kv_bytes)
    why = limit or (f"layers with the window keep {seen:,}" if windowed and context > seen else "")
    table.add_row(f"cache at {context:,} tokens", kept or NOT_THERE, why)
    scores = (
        f"4 x {sizes['n_layer']:,} blocks x {sizes['n_head']:,} heads x {sizes['head_width']:,} channels x tokens seen"
    )
    reading = f"2 x {told.num_matrix_weights:,} weights of matrices + {scores}"
    training = "three times that: the backward pass costs two forward ones"
    for name, flops, how in (
        ("FLOPs to read a token", told.forward_flops_per_token, reading),
        ("FLOPs to train on one", told.flops_per_token, training),
    ):
        table.add_row(name, NOT_THERE if flops is None else _short(flops, "G"), limit or how)
    return table


def _fields(out: Console, told: Explanation) -> None:
    subject = told.subject
    if not subject.fields:
        out.print()
        out.print(Text("as a config.json", style="bold"))
        out.print(subject.no_family)
        return
    table = _table("field", "value", "part", "what it means", folded=(1, 3))
    home = ""
    is_own = subject.knows_init
    for read in subject.fields:
        value = _shown(read.value) if read.given else f"({_shown(read.value)})"
        section, dot, _ = read.name.partition(".")
        name = f"  {read.name.removeprefix(section)}" if dot and section == home else read.name
        home = section
        table.add_row(name, value, read.field.group, read.field.meaning)
    title = f"as a config.json of transformers, {subject.family}" if is_own else "fields of its config.json"
    _section(out, title, table)
    if not all(read.given for read in subject.fields):
        out.print("(in brackets: absent, so it has its default in transformers)")


def _shown(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = printable(shown).replace("\n", " ")
    return shown if len(shown) <= MAX_VALUE_CHARS else f"{shown[: MAX_VALUE_CHARS - 1]}…"


def _rope_title(told: Explanation) -> str:
    groups = [(way, list(pairs)) for way, pairs in groupby(told.pairs, key=lambda pair: pair.stretching)]
    told_groups = [f"{_count(len(pairs), 'pair')} {way}" for way, pairs in groups]
    stretching = f": {', '.join(told_groups)}" if len(groups) > 1 or groups[0][0] != "kept" else ""
    return (
        f"RoPE's {_count(len(told.pairs), 'pair')} of channels, and the tokens that each takes for one turn{stretching}"
    )


def _rope_table(told: Explanation) -> Table:
    """Every pair where they are few; otherwise the first and last of each way of stretching, and some between."""
    is_stretched = any(pair.stretching != "kept" for pair in told.pairs)
    before = ("before",) if is_stretched else ()
    table = _table(
        "pair",
        "channels",
        *before,
        "wavelength",
        "turns in the context",
        "",
        right=(2, 3, 4) if is_stretched else (2, 3),
    )
    num_pairs, shown = len(told.pairs), _shown_pairs(told.pairs)
    for pair in told.pairs:
        if pair.index in shown:
            table.add_row(
                f"{pair.index}",
                f"{pair.index}, {pair.index + num_pairs}",
                *((f"{pair.plain_wavelength:,.2f}",) if is_stretched else ()),
                f"{pair.wavelength:,.2f}",
                f"{told.sizes['ctx_len'] / pair.wavelength:,.2f}",
                pair.stretching if is_stretched else "",
            )
        elif pair.index - 1 in shown:
            table.add_row("…")
    return table


def _shown_pairs(pairs: Sequence[Pair]) -> set[int]:
    if len(pairs) <= MAX_PAIRS:
        return set(range(len(pairs)))
    some = {0, 1, 2, 4, 8, 16, 32, 64, 128, len(pairs) - 1}
    for pair, following in pairwise(pairs):
        if pair.stretching != following.stretching:
            some |= {pair.index, following.index}
    return {index for index in some if index < len(pairs)}


# ------------------------------------------------------------------------------------------------ side by side


def show_many(out: Console, all_told: Sequence[Explanation]) -> None:
    """Print several models as columns, as many at once as fit; rows in which they differ are marked."""
    rows = [(title, [(label, [cell(told) for told in all_told]) for label, cell in lines]) for title, lines in ROWS]
    label_width = 1 + GAP + 2 + GAP + max(len(label) for _, lines in rows for label, _ in lines)
    widths = [
        max(_heading_width(told.subject.name), *(len(cells[place]) for _, lines in rows for _, cells in lines))
        for place, told in enumerate(all_told)
    ]
    for first, last in _fitting(widths, out.width - label_width):
        if first:
            out.print()
        table = _table("", "", *("" for _ in range(first, last)), right=range(2, 2 + last - first))
        table.show_header = True
        for place, told in enumerate(all_told[first:last]):
            column = table.columns[2 + place]
            column.header, column.no_wrap = Text(printable(told.subject.name), style="bold"), False
            column.width = widths[first + place]
        for title, lines in rows:
            table.add_row("", Text(title, style="bold"))
            for label, cells in lines:
                is_same = len(set(cells) - {UNKNOWN}) <= 1
                table.add_row("" if is_same else "≠", f"  {label}", *cells[first:last])
        out.print(table)
    out.print("\n≠: they differ. Costs are told at the context in the table; init counts where it is known.")


def _heading_width(name: str) -> int:
    """A heading is broken at its blanks, and where a word is very long."""
    return min(MAX_HEADING_CHARS, max(map(len, name.split())))


def _fitting(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Columns that fit into a line together: ranges of places."""
    ranges, first, taken = [], 0, 0
    for place, width in enumerate(widths):
        if place > first and taken + width > room:
            ranges.append((first, place))
            first, taken = place, 0
        taken += width + GAP
    return [*ranges, (first, len(widths))]


def _size(key: str) -> Callable[[Explanation], str]:
    return lambda told: f"{told.sizes[key]:,}"


def _part(axis: str) -> Callable[[Explanation], str]:
    return lambda told: told.parts[axis] or UNKNOWN


def _of_axis(axis: str) -> Callable[[Explanation], str]:
    return lambda told: _short(told.num_params_by_axis[axis])


def _weights(name: str) -> Callable[[Explanation], str]:
    return lambda told: _bytes(told.weight_bytes[name])


def _distance(base: str) -> Callable[[Explanation], str]:
    return lambda told: _count(len(told.distance[base]), "part")


def _maybe(told: int | None, shown: Callable[[int], str]) -> str:
    return NOT_THERE if told is None else shown(told)


def _window(told: Explanation) -> str:
    """Tokens that a token sees, and in how many blocks, where not in all."""
    windowed = [window for window in told.windows if window is not None]
    if not windowed:
        return "none"
    return f"{windowed[0]:,}" if len(windowed) == len(told.windows) else f"{windowed[0]:,} in {len(windowed)}"


ROWS: Sequence[tuple[str, Sequence[tuple[str, Callable[[Explanation], str]]]]] = (
    ("parts", [(axis, _part(axis)) for axis in AXES]),
    (
        "sizes",
        [
            ("blocks", _size("n_layer")),
            ("width", _size("d_model")),
            ("heads", _size("n_head")),
            ("heads of keys, values", _size("n_kv_head")),
            ("channels of a head", _size("head_width")),
            ("FFN width", _size("ffn_hidden")),
            ("window", _window),
            ("vocabulary", _size("vocab_size")),
            ("context", _size("ctx_len")),
        ],
    ),
    (
        "parameters of a block",
        [
            ("attention", lambda told: _short(told.block.attn)),
            ("FFN", lambda told: _short(told.block.ffn)),
            ("norms", lambda told: _short(told.block.norm)),
            ("together", lambda told: _short(told.block.total)),
        ],
    ),
    (
        "parameters of the model",
        [
            ("attention", _of_axis("attn")),
            ("FFN", _of_axis("ffn")),
            ("norms", _of_axis("norm")),
            ("positions", _of_axis("pos")),
            ("input matrix", _of_axis("embed")),
            ("output matrix", _of_axis("output")),
            ("together", lambda told: _short(told.num_params)),
            ("together, exactly", lambda told: f"{told.num_params:,}"),
            ("the vocabulary's share", lambda told: f"{told.vocabulary_share:.1%}"),
        ],
    ),
    (
        "costs",
        [
            ("weights in fp32", _weights("fp32")),
            ("weights in bf16", _weights("bf16")),
            ("weights in int8", _weights("int8")),
            ("weights in int4", _weights("int4")),
            ("cache for a token", lambda told: _bytes(told.kv_bytes_per_token)),
            ("at a context of", lambda told: f"{told.context:,}"),
            ("  cache", lambda told: _maybe(told.kv_bytes, _bytes)),
            ("  FLOPs to read a token", lambda told: _maybe(told.forward_flops_per_token, _flops)),
            ("  FLOPs to train on one", lambda told: _maybe(told.flops_per_token, _flops)),
        ],
    ),
    ("differ from", [(base, _distance(base)) for base in COMPARED_BASES]),
)


# ------------------------------------------------------------------------------------------------ a walk


def show_trace(out: Console, told: Explanation, walked: Trace) -> None:
    """Print every module that a text meets, and the shapes of what comes out."""
    _heading(out, told)
    read = f"{_count(walked.num_tokens, 'token')} {'is' if walked.num_tokens == 1 else 'are'} read"
    out.print(
        f"First {read}, then one more with the cache. Shapes are those of each text, without the batch dimension."
    )
    for stretch in walked.stretches:
        if stretch.steps:
            _section(out, _stretch_title(stretch), _stretch_table(stretch, walked.num_tokens, out.width))
    if walked.angles:
        _section(out, "angles, in radians: how far each pair of channels is turned", _angles_table(walked))


def _stretch_title(stretch: Stretch) -> str:
    if stretch.first_block is None or stretch.last_block is None:
        return "before the blocks" if stretch.steps[0].path == "embed" else "behind the blocks"
    path, theirs = f"blocks.{stretch.first_block}", _prefix(stretch)
    name = f" ({theirs} in transformers)" if theirs else ""
    if stretch.first_block == stretch.last_block:
        return f"{path}{name}"
    rest = (
        f"block {stretch.last_block}"
        if stretch.last_block == stretch.first_block + 1
        else f"blocks {stretch.first_block + 1} to {stretch.last_block}"
    )
    return f"{path}{name}; {rest}: the same"


def _prefix(stretch: Stretch) -> str | None:
    return next((step.hf_name for step in stretch.steps if step.path == f"blocks.{stretch.first_block}"), None)


def _stretch_table(stretch: Stretch, num_tokens: int, width: int) -> Table:
    """A row a step. Where it is narrow, a module's two names stand below each other."""
    prefix, theirs = f"blocks.{stretch.first_block}.", f"{_prefix(stretch)}."
    has_names, said, rows = any(step.hf_name for step in stretch.steps), "", []
    for step in stretch.steps:
        names = step.path.removeprefix(prefix), (step.hf_name or UNKNOWN).removeprefix(theirs)
        shapes = map(_shape, (step.weight, step.first, step.next))
        rows.append((*(("", "") if step.path == said else names), step.does, *shapes))
        said = step.path
    headings = ("module", "Hugging Face", "what comes out", "weight", _count(num_tokens, "token"), "1 more")
    natural = sum(max(map(len, column)) + GAP for column in zip(headings, *rows, strict=True)) - GAP
    if not has_names:
        table = _table("module", *headings[2:], folded=(1,))
    elif natural <= width:
        table = _table(*headings, folded=(2,))
    else:
        table = _table("module\nHugging Face", *headings[2:], folded=(1,))
    for ours, hf_name, *rest in rows:
        both = [ours, hf_name] if natural <= width else [f"{ours}\n{hf_name}".strip()]
        table.add_row(*(both if has_names else [ours]), *rest)
    return table


def _shape(shape: Shape | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"


def _angles_table(walked: Trace) -> Table:
    num_pairs = 1 + max(angle.pair for angle in walked.angles)
    table = _table("position", *(f"pair {pair}" for pair in range(num_pairs)), right=range(1 + num_pairs))
    for position, angles in groupby(walked.angles, key=lambda angle: angle.position):
        table.add_row(f"{position}", *(f"{angle.radians:.4g}" for angle in angles))
    return table


# ------------------------------------------------------------------------------------------------ numbers


def _short(number: int, giga: str = "B") -> str:
    """A large number in millions or billions, two decimals; a small one as it is."""
    for size, letter in ((10**12, "T"), (10**9, giga), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.2f} {letter}"
    return f"{number:,}"


def _flops(number: int) -> str:
    return _short(number, "G")


def _bytes(number: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,} bytes"
