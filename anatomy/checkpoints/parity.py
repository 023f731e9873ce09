"""The gate: a model of ours and the same one as `transformers` runs it must give the same logits.

Both read the same tokens, in one pass and with their caches, a piece first and then token by token. Positions matter:
at the first of them every RoPE agrees with every other, so the text is longer than a window where that can be.

Tensor legend: T tokens, V vocabulary.
"""

import gc
import importlib.util
import inspect
import io
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anatomy.checkpoints.sources import Source
from anatomy.config import Composition
from anatomy.decoding import decoder
from anatomy.errors import UserError, one_line
from anatomy.model import Transformer
from anatomy.threads import half_the_threads

MIN_TOLERANCE, MAX_TOLERANCE = 1e-4, 1e-3  # of a logit
ROUNDINGS = 4  # two programs are found up to twice as far apart as one is from itself
NUM_POSITIONS = 64
BEYOND_WINDOW = 16  # so many more than a window holds
MAX_POSITIONS = 512  # logits of more would take much room
FIRST_PIECE = 0.75  # the share that is read at once; the rest comes token by token
SEED = 0


@dataclass(frozen=True)
class Parity:
    """How far two models are apart, over all positions and the whole vocabulary.

    rounding  how far transformers' own model is from itself, in one pass and with its cache: what float32 costs here
    """

    max_logit_difference: float
    max_cached_logit_difference: float
    positions: int
    rounding: float

    @property
    def tolerance(self) -> float:
        """How far they may be apart. How large the logits are plays no part: what all have in common changes no
        probability, and would hide a wrong activation."""
        return min(max(MIN_TOLERANCE, ROUNDINGS * self.rounding), MAX_TOLERANCE)

    @property
    def is_finite(self) -> bool:
        """Whether the logits are numbers, so that they can be compared."""
        return all(map(math.isfinite, (self.max_logit_difference, self.max_cached_logit_difference, self.rounding)))

    @property
    def holds(self) -> bool:
        """Whether they are the same model."""
        largest = max(self.max_logit_difference, self.max_cached_logit_difference)
        return self.is_finite and largest <= self.tolerance


def is_checkable() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def num_positions(composition: Composition) -> int:
    """How many tokens are read: enough to outgrow a small window, never more than there are positions."""
    size = composition.window.get("size") or 0
    beyond = size + BEYOND_WINDOW if size + BEYOND_WINDOW <= MAX_POSITIONS else 0
    return min(max(NUM_POSITIONS, beyond), composition.model.ctx_len)


def unreached(composition: Composition, positions: int) -> list[str]:
    """What a text of so many tokens is too short for."""
    limits = {
        "the end of its window of {:,} positions": composition.window.get("size"),
        "positions beyond the {:,} that RoPE was stretched from": composition.pos.get("original_len"),
    }
    context = composition.model.ctx_len
    return [words.format(limit) for words, limit in limits.items() if limit and positions <= limit < context]


@half_the_threads()
@torch.inference_mode()
def compare(ours: Callable[[], Transformer], theirs: Callable[[], Any], composition: Composition) -> Parity:
    """Compare the logits of two models. Each is opened when its turn comes, so that one of them is held at a time."""
    own = ours()
    ids = torch.randint(own.num_symbols, (1, num_positions(composition)), generator=torch.Generator().manual_seed(SEED))
    one_pass, cached = own(ids)[0], _cached(own, ids)
    del own
    with _quietly():
        other = theirs()
        their_pass, their_cached = _their_logits(other, ids)
        del other
    return Parity(
        float((one_pass - their_pass).abs().max()),
        float((cached - their_cached).abs().max()),
        ids.shape[1],
        float((their_pass - their_cached).abs().max()),
    )


def _pieces(ids: Tensor) -> Iterator[Tensor]:
    """The tokens as the cached passes read them: some at once, then each alone."""
    num_first = max(1, int(FIRST_PIECE * ids.shape[1]))
    yield ids[:, :num_first]
    for position in range(num_first, ids.shape[1]):
        yield ids[:, position : position + 1]


def _cached(model: Transformer, ids: Tensor) -> Tensor:
    """Logits (T, V) as anatomy-sample comes to them."""
    cache = model.new_cache(ids.shape[1])
    first, *rest = _pieces(ids)
    logits = [model(first, cache)[0]]
    next_logits = decoder(model, cache)
    logits += [next_logits(piece[0].tolist()).clone() for piece in rest]
    return torch.cat(logits)


def _their_logits(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, V) of a model of transformers, in one pass and with its cache."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    one_pass, kept, logits = model(ids, use_cache=False).logits[0], None, []
    for piece in _pieces(ids):
        output = model(piece, use_cache=True, **{name: kept})
        kept = output[name]
        logits.append(output.logits[0])
    return one_pass, torch.cat(logits)


# ------------------------------------------------------------------------------------------- opened by transformers


def open_theirs(source: Source) -> Any:
    """The model of a source, opened by transformers: float32, with the plainest of its attentions.

    Raises: UserError where transformers cannot.
    """
    if source.format != "gguf":
        return open_folder(source.path, source.where)
    with _refusal_told(source.where):
        return _of_gguf(source)


def open_folder(folder: Path, where: str) -> Any:
    """The model in a Hugging Face folder, likewise; `where` is what messages call it. No code of its own is run."""
    from transformers import AutoModelForCausalLM

    with _refusal_told(where):
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32, attn_implementation="eager"
        )
        return model.eval()


@contextmanager
def _refusal_told(where: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # what it raises at a model that it does not understand has no end
        reason = one_line(f"{type(error).__name__}: {error}".partition("\n")[0], 200)
        raise UserError(
            f"{where}: transformers cannot open it, so there is nothing to compare with ({reason}); type "
            f"--no-verify to go without"
        ) from None


def _of_gguf(source: Source) -> Any:
    """The model in a GGUF file, its tensors as transformers reads them. Its own way of opening one wants accelerate."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.for_model(**source.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with _without_collector():
        read = load_gguf_checkpoint(str(source.path), return_tensors=True, model_to_load=model)
    theirs = {name: value for name, value in read["config"].items() if name in source.config}
    if differ := [name for name, value in theirs.items() if not _is_near(value, source.config[name])]:
        raise UserError(f"{source.where}: transformers reads {', '.join(differ)} otherwise")
    lacking, surplus = model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    if surplus or any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(
            f"{source.where}: transformers finds other tensors in it ({', '.join([*lacking, *surplus][:4])})"
        )
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are on the meta device still
    return model.eval()


def _is_near(one: Any, other: Any) -> bool:
    """Whether two values are the same, numbers but for float32's rounding."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= 1e-6 * abs(other)
    return bool(one == other)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without the search for cycles: among the million small arrays that a header becomes, it takes long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the notes, warnings and progress bars of transformers."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
