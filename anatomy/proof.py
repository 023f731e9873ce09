"""The proof that a swap does what it says: the model computes something else, and nothing undeclared has changed.

A composition is held against itself with one changed axis put back to its base's part, axis by axis. They may differ
in what that axis owns, and nowhere else:

    norm       blocks.*.attn_norm, blocks.*.ffn_norm, final_norm
    placement  the block itself, what it brings, and whether there is a final norm
    pos        pos
    attn       blocks.*.attn
    ffn        blocks.*.ffn
    bias       whether the blocks' Linear layers have biases; where both models have them, a bias follows its matrix
    tying      whether the output has a matrix of its own
    init       the values at the start
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anatomy.axes import AXES, BASES, BIASED, LATER_AXES, differences
from anatomy.build import MATCHED, build_model, derived, with_hidden, with_parts
from anatomy.config import Config
from anatomy.errors import UserError
from anatomy.model import Transformer, init_digests, initialise
from anatomy.threads import using_threads

NUM_SEQUENCES, MAX_TOKENS = 2, 16  # of the batch that both models read; behind a window, so many more tokens
PERTURBATION_STD = 0.1  # added to every tensor, so that what starts at zero (a shift, a bias) shows as well
# Two outputs are the same below this difference, as a share of the largest output. Over both scales and all bases,
# parts written another way but algebraically equal came to 2e-6 at most once perturbed; the nearest two parts that
# differ, gelu and gelu_tanh, to 2e-4 at least (at the start, where FFNs see small numbers, to 5e-7).
SAME = 2e-5

SLOT_OWNERS: Mapping[str, str] = {"attn": "attn", "ffn": "ffn", "attn_norm": "norm", "ffn_norm": "norm"}  # in a block
END_OWNERS: Mapping[str, str] = {"pos": "pos", "final_norm": "norm", "output": "tying"}  # around the blocks


@dataclass(frozen=True)
class Print:
    """What of a model shows in a comparison, by the paths of named_modules and named_parameters."""

    classes: Mapping[str, type[nn.Module]]
    shapes: Mapping[str, tuple[int, ...]]
    starts: Mapping[str, str]  # digests
    linear_biases: frozenset[str]  # of the blocks
    bias: str  # what the axis has
    outputs: tuple[Tensor, Tensor]  # (B, T, V) each: at the start, and perturbed


def take_print(config: Config, num_symbols: int, num_tokens: int) -> Print:
    """Build a composition on the CPU, start it from seed 0, and run it on a fixed batch of `num_tokens` random ids.

    Raises UserError if it cannot be built, or breaks on the batch.
    """
    model = build_model(config, num_symbols, device="cpu").eval()
    initialise(model, config.init, seed=0)
    starts = init_digests(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(num_symbols, (NUM_SEQUENCES, num_tokens), generator=generator)
    try:
        with torch.no_grad():
            at_start = model(ids)
            _perturb(model)
            outputs = at_start, model(ids)
    except Exception as error:  # a user's part may break in any way
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{_words(config)}: breaks on a batch of random ids ({reason})") from error
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise UserError(f"{_words(config)}: gives what is not a finite number on a batch of random ids")
    modules = dict(model.named_modules(remove_duplicate=False))
    return Print(
        classes={path: type(module) for path, module in modules.items()},
        shapes={path: tuple(p.shape) for path, p in model.named_parameters(remove_duplicate=False)},
        starts=starts,
        linear_biases=frozenset(
            f"{path}.bias"
            for path, module in modules.items()
            if path.startswith("blocks.") and isinstance(module, nn.Linear) and module.bias is not None
        ),
        bias=config.bias,
        outputs=outputs,
    )


def _words(config: Config) -> str:
    return " ".join(f"{axis}={part}" for axis, part in config.parts.items())


def _perturb(model: Transformer) -> None:
    """Move every tensor by a draw that its name alone decides."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        parameter.add_(PERTURBATION_STD * torch.randn(parameter.shape, generator=generator))


def undeclared(axis: str, ours: Print, theirs: Print) -> Iterator[str]:
    """Where two models that should differ in `axis` alone differ in something that another axis owns, or none."""
    for path in {**ours.classes, **theirs.classes}:
        new, old = ours.classes.get(path), theirs.classes.get(path)
        if new is not old and (owner := _owner(path, ours, theirs)) != axis:
            yield _difference(f"module {path}", _name(old), _name(new), owner)
    for path in {**ours.shapes, **theirs.shapes}:
        new_shape, old_shape, owner = ours.shapes.get(path), theirs.shapes.get(path), _owner(path, ours, theirs)
        if owner == axis:
            continue
        if new_shape != old_shape:
            yield _difference(f"tensor {path}", old_shape, new_shape, owner)
        elif axis != "init" and ours.starts.get(path) != theirs.starts.get(path):
            yield f"the start of tensor {path}, which belongs to {owner or 'no axis'}"


def _owner(path: str, ours: Print, theirs: Print) -> str | None:
    """The axis that a module or tensor belongs to, where two models differ in it; None for the skeleton's own."""
    head, *rest = path.split(".")
    if path in ours.linear_biases | theirs.linear_biases:
        layer = path.split(".")[-2]
        if not all(layer in BIASED[each.bias] for each in (ours, theirs)):
            return "bias"
    if head == "final_norm" and (head in ours.classes) != (head in theirs.classes):
        return "placement"
    if head == "blocks" and rest[1:2] == ["attn"] and len(rest) > 2 and rest[2] in LATER_AXES:
        return rest[2]  # what is handed to attention bears the name of its axis
    if head == "blocks" and rest:
        return SLOT_OWNERS.get(rest[1], "placement") if len(rest) > 1 else "placement"
    return END_OWNERS.get(head)


def _difference(what: str, old: Any, new: Any, owner: str | None) -> str:
    return f"{what} ({old or 'none'} -> {new or 'none'}), which belongs to {owner or 'no axis'}"


def _name(kind: type[nn.Module] | None) -> str | None:
    return kind.__name__ if kind else None


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs agree but for rounding."""
    return bool((one - other).abs().max() <= SAME * other.abs().max())


def _num_tokens(config: Config, num_symbols: int) -> int:
    """How many tokens a composition must read to show what it does: some that lie behind its window, if it has one."""
    window = derived(build_model(config, num_symbols)).get("window", 0)
    return min(config.model.ctx_len, window + MAX_TOKENS)


class Prover:
    """Proves the swaps of a plan, each composition built once, however many arms are held against it."""

    def __init__(self) -> None:
        self._prints: dict[str, Print] = {}
        self._faults: dict[str, list[str]] = {}

    def faults(self, config: Config, num_symbols: int) -> list[str]:
        """What is wrong with the swaps that make a composition of its base, a line an axis. Seeds do not matter.

        An axis is passed over where no model can be built with the base's part on it, for want of anything to hold
        against. A width that `match` solves is kept in both models.
        """
        key = f"{num_symbols} {config.model_dump_json(include={'base', *AXES, 'model', 'match'})}"
        if key not in self._faults:
            with using_threads(1):  # where cores are busy, more took five times as long, for waiting
                self._faults[key] = list(self._find_faults(config, num_symbols))
        return self._faults[key]

    def _find_faults(self, config: Config, num_symbols: int) -> Iterator[str]:
        is_matched = config.match in MATCHED
        if is_matched:
            config = with_hidden(config, derived(build_model(config, num_symbols))["ffn_hidden"])
        for axis in differences(config.parts, BASES[config.base]):
            part = BASES[config.base][axis]
            put_back = with_parts(config, {axis: part})
            if is_matched:
                put_back = with_hidden(put_back, config.ffn["hidden"])
            try:
                num_tokens = _num_tokens(config, num_symbols)
                ours = self._print(config, num_symbols, num_tokens)
            except UserError as error:
                yield str(error)
                return
            try:
                num_tokens = max(num_tokens, _num_tokens(put_back, num_symbols))
                theirs = self._print(put_back, num_symbols, num_tokens)
            except UserError:
                continue
            ours = self._print(config, num_symbols, num_tokens)
            where = f"{axis}={config.parts[axis]}"
            if moved := list(undeclared(axis, ours, theirs)):
                more = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
                yield f"{where}: changes {moved[0]}{more}; a part may change only what is of its own axis"
            elif all(map(_is_same, ours.outputs, theirs.outputs)):
                yield f"{where}: changes nothing, with {axis}={part} this model computes the same; take another part"

    def _print(self, config: Config, num_symbols: int, num_tokens: int) -> Print:
        key = f"{num_symbols} {num_tokens} {config.model_dump_json(include={*AXES, 'model'})}"
        if key not in self._prints:
            self._prints[key] = take_print(config, num_symbols, num_tokens)
        return self._prints[key]
