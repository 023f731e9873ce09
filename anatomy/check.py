"""The self-check for a reader: does this installation do what it says, shown in numbers, in seconds.

Every check says what was asked, what was found and whether it is as it should be; none of them needs a run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

import torch

from anatomy.about import offered
from anatomy.axes import BASES, PART_AXES
from anatomy.build import build_model, with_parts
from anatomy.compose import read_command
from anatomy.config import Config, parse_config
from anatomy.corpus import load_corpus
from anatomy.decoding import decoder
from anatomy.errors import UserError
from anatomy.model import Transformer, initialise
from anatomy.parts.pos import RoPE, rotate
from anatomy.texts import TEXTS

PACKAGES = ("torch", "hydra-core", "omegaconf", "numpy", "safetensors")
NUM_SYMBOLS = 31  # tiny sizes, primes where they may be, so that no two are mixed up unseen
SIZES = ("model.d_model=24", "model.n_layer=2", "model.n_head=4", "model.ctx_len=13")
SHIFT = 5
SAME = 1e-5  # logits of tiny models that differ by less are the same


@dataclass(frozen=True)
class Finding:
    """One line of the self-check. `is_good` None: nothing to judge, only to know."""

    subject: str
    found: str
    is_good: bool | None


def check_all() -> Iterator[Finding]:
    """Every check in turn. A check that breaks is a finding, not a traceback."""
    for check in (_environment, _corpora, _first_losses, _parts, _rope, _causality, _decoding):
        try:
            yield from check()
        except Exception as error:  # a self-check tells what is broken, whatever it is
            yield Finding(check.__name__.strip("_").replace("_", " "), f"{type(error).__name__}: {error}", False)


def _environment() -> Iterator[Finding]:
    yield Finding("versions", ", ".join(f"{name} {version(name)}" for name in PACKAGES), None)
    devices = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there = [name for name, is_there in devices.items() if is_there]
    yield Finding("devices", ", ".join(["cpu", *there]), None)


def _corpora() -> Iterator[Finding]:
    for name in TEXTS:
        try:
            corpus = load_corpus(name)
        except UserError as error:
            yield Finding(f"corpus {name}", str(error), None)
        else:
            found = f"{corpus.num_chars:,} characters, {len(corpus.vocabulary):,} distinct, sha256 as pinned"
            yield Finding(f"corpus {name}", found, True)


def _first_losses() -> Iterator[Finding]:
    """At the start a model knows nothing: its loss is ln V, and a little for the spread of its logits."""
    for base in BASES:
        model = _model(base)
        ids = _ids(model, batch_size=64)
        loss = model.mean_loss_nats(ids[:, :-1], ids[:, 1:]).item()
        found = f"{loss:.3f} nats before training; ln {NUM_SYMBOLS} = {math.log(NUM_SYMBOLS):.3f}"
        yield Finding(f"base={base}", found, abs(loss - math.log(NUM_SYMBOLS)) < 0.05)


def _parts() -> Iterator[Finding]:
    """Every part on every base: forward, backward, its parameters against the formula, and decoding."""
    for axis in PART_AXES:
        for name in offered(axis):
            problems = [p for base in BASES if (p := _problem(_model(base, **{axis: name})))]
            found = "; ".join(problems) or "forward, backward, parameters and decoding right on every base"
            yield Finding(f"{axis}={name}", found, not problems)


def _problem(model: Transformer) -> str | None:
    ids = _ids(model)
    loss = model.mean_loss_nats(ids[:, :-1], ids[:, 1:])
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if silent := [name for name, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]:
        return f"no finite gradient for {', '.join(silent)}"
    counted = sum(parameter.numel() for parameter in model.parameters())
    formula = sum(model.num_params_by_axis().values())
    if counted != formula:
        return f"{counted:,} parameters, the formula says {formula:,}"
    moved, _ = _decoded_otherwise(model)
    return None if moved < SAME else f"decoded token by token its logits differ by {moved:.0e}"


def _rope() -> Iterator[Finding]:
    """Attention scores under RoPE before and after every position is shifted."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 13, 1, 8, generator=generator)
    rope = RoPE(8)

    def scores(shift: int) -> torch.Tensor:
        rotation = rope.rotation(torch.arange(13) + shift)
        return torch.einsum("bthk,bshk->bhts", rotate(q, rotation), rotate(k, rotation))

    moved = (scores(SHIFT) - scores(0)).abs().max().item()
    example = scores(0)[0, 0, 7, 3].item(), scores(SHIFT)[0, 0, 7, 3].item()
    found = (
        f"score of tokens 7 and 3: {example[0]:.6f}, shifted by {SHIFT}: {example[1]:.6f}; largest change {moved:.0e}"
    )
    yield Finding("RoPE sees distances", found, moved < 1e-5)


def _causality() -> Iterator[Finding]:
    """A later token never changes what a model says of earlier ones."""
    for base in BASES:
        model = _model(base).eval()
        ids = _ids(model)[:, :-1]
        changed = ids.clone()
        changed[:, -1] = (changed[:, -1] + 1) % NUM_SYMBOLS
        with torch.no_grad():
            moved = (model(ids) - model(changed))[:, :-1].abs().max().item()
        yield Finding(
            f"base={base} is causal", f"earlier logits move by {moved:.0e} when the last token changes", moved == 0
        )


def _decoding() -> Iterator[Finding]:
    """Token by token with a cache, two texts of different lengths side by side, against one pass over each alone."""
    for base in BASES:
        moved, num_bytes = _decoded_otherwise(_model(base))
        found = f"logits differ from those of a pass without a cache by {moved:.0e}; {num_bytes:,} bytes"
        yield Finding(f"base={base} decodes", found, moved < SAME)


def _decoded_otherwise(model: Transformer) -> tuple[float, int]:
    """How far the logits of decoding lie from those of one pass at most, and what the cache took."""
    num_first, padding = 7, torch.tensor([0, 5])
    ids = _ids(model.eval(), batch_size=2)[:, :-1]
    with torch.no_grad():
        kept = model.new_cache(ids.shape[1], padding)
        model(ids[:, :num_first], kept)
        next_logits = decoder(model, kept)
        logits = torch.stack([next_logits(ids[:, t].tolist()) for t in range(num_first, ids.shape[1])], dim=1)
        alone = torch.cat(
            [model(ids[row : row + 1, num:])[:, num_first - ids.shape[1] :] for row, num in enumerate(padding.tolist())]
        )
    return (logits - alone).abs().max().item(), kept.nbytes


@cache
def _config(base: str) -> Config:
    (request,) = read_command([f"base={base}", *SIZES], multirun=False).requests
    config, faults = parse_config(request.resolved)
    assert config is not None, faults
    return config


def _model(base: str, **parts: str) -> Transformer:
    """A tiny model of a base, with the parts named put into their axes."""
    config = with_parts(_config(base), parts)
    model = build_model(config, NUM_SYMBOLS, device="cpu")
    initialise(model, config.init, seed=0)
    return model


def _ids(model: Transformer, batch_size: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.num_symbols, (batch_size, 14), generator=generator)
