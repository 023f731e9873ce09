"""anatomy-bench: speed, side by side."""

import click

from anatomy import __version__
from anatomy.cli.common import console, run_click


@click.group(name="anatomy-bench")
@click.version_option(__version__)
def command() -> None:
    """Speed of the bases, side by side, interleaved in one process."""


@command.command()
@click.option("--scale", default="article", show_default=True, help="Sizes and batch, one of conf/scale.")
@click.option("--vocab-size", default=1719, show_default=True, type=click.IntRange(2, 20_000), help="Characters.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Steps timed of each base.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads of each step.")
@click.argument("settings", nargs=-1)
def train(scale: str, vocab_size: int, rounds: int, threads: int, settings: tuple[str, ...]) -> None:
    """Time a training step of vanilla and llama against its bare matrix products. SETTINGS go to both."""
    from rich.table import Table

    from anatomy.bench import ratio_of_medians, time_steps
    from anatomy.compose import read_command
    from anatomy.config import parse_config
    from anatomy.errors import UserError

    configs = {}
    for base in ("vanilla", "llama"):
        words = [f"base={base}", f"scale={scale}", f"train.threads={threads}", *settings]
        config, faults = parse_config(read_command(words, multirun=False).requests[0].resolved)
        if config is None:
            raise UserError("\n".join(faults))
        configs[base] = config
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


def main() -> None:
    run_click(command)
