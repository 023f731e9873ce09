"""anatomy-corpus: which texts there are, what one is made of, and how to get it."""

import click

from anatomy import __version__
from anatomy.cli.common import console, run_click
from anatomy.errors import UserError

NUM_FIRST_CHARS = 72


@click.group(invoke_without_command=True)
@click.version_option(__version__, prog_name="anatomy-corpus")
@click.pass_context
def commands(context: click.Context) -> None:
    """The texts that models are trained on."""
    if context.invoked_subcommand is None:
        raise UserError("anatomy-corpus: needs a command; type: anatomy-corpus list, show NAME or fetch NAME")


@commands.command("list")
def list_texts() -> None:
    """List the texts and whether they are on this machine."""
    from rich.table import Table

    from anatomy.texts import FILES, TEXTS, load_text

    table = Table("name", box=None, pad_edge=False)
    table.add_column("characters", justify="right")
    table.add_column("distinct", justify="right")
    table.add_column("on this machine")
    table.add_column("what it is")
    for name, builtin in TEXTS.items():
        try:
            load_text(name)
            state = "yes"
        except UserError as error:
            state = str(error).removeprefix(f"corpus={name}: ")
        table.add_row(name, f"{builtin.num_chars:,}", f"{builtin.num_distinct:,}", state, builtin.description)
    table.add_row(FILES, "", "", "corpus.path=PATH", "your own file, or folder of .txt and .md files")
    console().print(table)


@commands.command()
@click.argument("name")
@click.option("--path", help="The file or folder to read, for NAME files.")
@click.option(
    "--split",
    default="blocks",
    show_default=True,
    type=click.Choice(["blocks", "tail"]),
    help="Validation and test: blocks dealt over the whole text, or its end.",
)
def show(name: str, path: str | None, split: str) -> None:
    """Show what a text is made of: size, vocabulary, split, and how predictable it is by simple means."""
    import numpy as np
    from rich.table import Table

    from anatomy.corpus import load_corpus
    from anatomy.rungs import xz_nats_per_char
    from anatomy.texts import TEXTS

    corpus = load_corpus(name, path=path, split=split)
    share = np.bincount(corpus.ids) / corpus.num_chars
    entropy_bits = float(-(share * np.log2(share)).sum()) + 0.0  # + 0.0: no entropy is 0, not -0
    test_text = corpus.text("test")
    xz = f"{xz_nats_per_char(test_text) / np.log(2):.3f} bits per character" if test_text else "nothing to compress"

    table = Table.grid(padding=(0, 2))
    table.add_row("name", corpus.name)
    if name in TEXTS:
        table.add_row("what it is", TEXTS[name].description)
        table.add_row("from", f"{', '.join(TEXTS[name].requirements)}: {TEXTS[name].members}")
        table.add_row("licence", TEXTS[name].licence)
    table.add_row("sha256", corpus.sha256)
    table.add_row("characters", f"{corpus.num_chars:,}")
    table.add_row("vocabulary", f"{len(corpus.vocabulary):,} distinct characters, over the whole text")
    table.add_row("split", corpus.split)
    table.add_row("train", f"{corpus.num_train_chars:,} characters")
    table.add_row("validation", f"{corpus.num_val_chars:,} characters")
    table.add_row("test", "the validation part" if corpus.test_is_val else f"{corpus.num_test_chars:,} characters")
    table.add_row("entropy", f"{entropy_bits:.3f} bits per character, single characters of the whole text")
    table.add_row("xz", f"{xz}, the test part alone")
    # repr escapes what would act on a terminal: control characters, and marks that change the writing direction.
    table.add_row("begins", repr(corpus.vocabulary.decode(corpus.ids[:NUM_FIRST_CHARS])))
    for note in corpus.notes:
        table.add_row("note", note)
    console().print(table)


@commands.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Download a text and keep it in the cache folder (ANATOMY_CACHE, else the user's own)."""
    from anatomy.texts import fetch_text, find_builtin

    file = fetch_text(name)
    where = "comes with anatomy" if file is None else f"is in {str(file)!r}"
    console().print(f"{name}: {find_builtin(name).num_chars:,} characters; the text {where}")


def main() -> None:
    """Run the command line."""
    run_click(commands)


if __name__ == "__main__":
    main()
