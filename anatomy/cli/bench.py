"""anatomy-bench: speed, side by side."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from anatomy import __version__
from anatomy.cli.common import console, run_click

if TYPE_CHECKING:
    from anatomy.config import Config

_threads = click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1, os.cpu_count()), help="Threads of what is timed."
)
_vocab_size = click.option(
    "--vocab-size", default=1719, show_default=True, type=click.IntRange(2, 20_000), help="Characters."
)
_INTERVALS = "medians, in brackets their 95 % intervals"


@click.group(name="anatomy-bench")
@click.version_option(__version__)
def command() -> None:
    """Speed, side by side, interleaved in one process."""


@command.command()
@click.option("--scale", default="article", show_default=True, help="Sizes and batch, one of conf/scale.")
@_vocab_size
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Steps timed of each base.")
@_threads
@click.argument("settings", nargs=-1)
def train(scale: str, vocab_size: int, rounds: int, threads: int, settings: tuple[str, ...]) -> None:
    """Time a training step of vanilla and llama against its bare matrix products. SETTINGS go to both."""
    from rich.table import Table

    from anatomy.bench import ratio_of_medians, time_steps

    configs = {
        base: _config(base, f"scale={scale}", f"train.threads={threads}", *settings) for base in ("vanilla", "llama")
    }
    times = time_steps(configs, num_symbols=vocab_size, rounds=rounds)
    table = Table("base", "step, ms", "matrix products, ms", "step / products", box=None)
    for base, measured in times.items():
        ratio = f"{measured.step_over_products:.2f}"
        table.add_row(base, f"{measured.step_ms:.1f}", f"{measured.products_ms:.1f}", ratio)
    out = console()
    out.print(table)
    out.print(
        f"llama / vanilla: {ratio_of_medians(times, 'llama', 'vanilla'):.2f} (medians of {rounds} rounds, in turns)"
    )


@command.command()
@_threads
def norm(threads: int) -> None:
    """Time each norm alone, as it runs here, as PyTorch's own call and by hand. On the CPU."""
    import torch

    from anatomy.measures import take

    measured = take(["norm_calls"], [], 2, torch.device("cpu"), threads)["norm_calls"]
    rows = [
        (
            str(row["width"]),
            row["norm"],
            row["form"],
            f"{row['num_params']:,}",
            f"{row['forward_ns']:,.0f}",
            *_with_interval(row, "forward_over_layer"),
            f"{row['both_ns']:,.0f}",
            *_with_interval(row, "both_over_layer"),
        )
        for row in measured["rows"]
    ]
    heads = ("width", "norm", "form", "parameters", "forward, ns", "/ layer", "", "with backward, ns", "/ layer", "")
    _print_table(heads, rows, left=("norm", "form", ""))
    fused = "has" if measured["has_fused_rms_norm"] else "has no"
    console().print(
        f"{measured['rows'][0]['num_tokens']:,} tokens a call; {_INTERVALS}, of {measured['num_rounds']} rounds; "
        f"the cpu {fused} fused kernel for F.rms_norm"
    )


@command.command()
@click.option("--scale", default="quick", show_default=True, help="The smaller of the two sizes, one of conf/scale.")
@_vocab_size
@_threads
def decode(scale: str, vocab_size: int, threads: int) -> None:
    """Time one token decoded with a cache of 1k to 16k tokens, by key-value heads. On the CPU."""
    import torch

    from anatomy.measures import take

    config = _config("llama", f"scale={scale}")
    measured = take(["decode"], [config], vocab_size, torch.device("cpu"), threads)["decode"]
    rows = [
        (
            f"{row['width']}x{row['n_layer']}",
            f"{row['n_kv_head']}/{row['n_head']}",
            f"{row['num_cached']:,}",
            f"{row['cache_bytes'] / 2**20:,.2f}",
            f"{row['step_us']:,.0f}",
            f"{row['tokens_per_s']:,.0f}",
            *_with_interval(row, "over_full_heads"),
            f"{100 * row['attending_share']:.0f} %",
        )
        for row in measured["rows"]
    ]
    heads = ("size", "KV heads", "cached", "cache, MiB", "step, us", "tokens/s", "/ full heads", "", "attending")
    _print_table(heads, rows, left=("",))
    console().print(
        f"{_INTERVALS}, of at least {measured['num_rounds']} rounds; "
        "attending: the share of a step that is gone where nothing is cached"
    )


@command.command()
@click.option("--scale", default="article", show_default=True, help="Sizes, one of conf/scale.")
@_vocab_size
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Texts timed of each way.")
@_threads
def generate(scale: str, vocab_size: int, rounds: int, threads: int) -> None:
    """Time texts written by a LLaMA: with a cache, without, and by transformers where it is installed. On the CPU."""
    import torch

    from anatomy.generation_speed import generation_speed

    torch.set_num_threads(threads)
    measured = generation_speed(_config("llama", f"scale={scale}"), vocab_size, rounds=rounds)
    rows = []
    for row in measured:
        cells = (f"{row['batch_size']}", f"{row['num_tokens']:,}", row["way"], f"{row['tokens_per_s']:,.0f}")
        over = ("", "") if row["over_transformers"] is None else _with_interval(row, "over_transformers")
        cache = row["cache_bytes"]
        rows.append(
            (*cells, *over, f"{cache['measured']:,}" if cache else "", f"{cache['formula']:,}" if cache else "")
        )
    heads = ("texts", "tokens", "by", "tokens/s", "/ transformers", "", "cache, bytes", "by the formula")
    _print_table(heads, rows, left=("by", ""))
    out = console()
    out.print(f"greedy, {_INTERVALS}, of {rounds} rounds, in turns; the time of a text holds that of its prompt")
    if not any(row["over_transformers"] for row in measured):
        out.print(
            "transformers is not installed, so there is nothing to hold it against; type: pip install transformers"
        )


def _config(base: str, *words: str) -> "Config":
    from anatomy.compose import read_command
    from anatomy.config import parse_config
    from anatomy.errors import UserError

    config, faults = parse_config(read_command([f"base={base}", *words], multirun=False).requests[0].resolved)
    if config is None:
        raise UserError("\n".join(faults))
    return config


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> None:
    """Columns are right-aligned but for those whose head is in `left`."""
    from rich.table import Table

    table = Table(box=None)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _with_interval(row: dict[str, Any], key: str) -> tuple[str, str]:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return f"{row[key]:.2f}", "" if low is None else f"[{low:.2f}, {high:.2f}]"


def main() -> None:
    run_click(command)
