"""Imported models, made on the spot: a tiny model, a tokenizer trained on made-up text, in a folder as anatomy-convert
writes it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from conftest import TINY, compose
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from anatomy.build import build_model
from anatomy.config import Composition
from anatomy.model import Transformer, initialise

NUM_TOKENS = 307
END = "<|end|>"
SENTENCES = ("the norm of a key and a query", "the gate of the token stream", "rope turns the keys, 中文 and é 🙂")


@cache
def merges_and_vocabulary() -> tuple[list[tuple[str, str]], dict[str, int]]:
    """What byte-level BPE learns of the sentences: merges, and the tokens, END the first."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(SENTENCES * 3, trainer)
    model = json.loads(learner.to_str())["model"]
    return [tuple(pair) for pair in model["merges"]], model["vocab"]


def byte_level(*, marks_beginning: bool = False) -> Tokenizer:
    """Words and parts of words; of Chinese characters and emoji the bytes, one or two a token."""
    merges, vocabulary = merges_and_vocabulary()
    assert len(vocabulary) == NUM_TOKENS
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    if marks_beginning:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    return tokenizer


def composition_of(*words: str, num_ids: int = NUM_TOKENS) -> Composition:
    config = compose(*TINY, *words)
    sizes = config.model.model_copy(update={"vocab_size": num_ids})
    plain = {name: getattr(config, name) for name in Composition.model_fields} | {"model": sizes}
    return Composition(**plain)


def lively(composition: Composition, num_ids: int = NUM_TOKENS) -> Transformer:
    """A tiny model of which the next token depends on the text: at its start it hardly does."""
    model = build_model(composition, num_ids, device="cpu")
    initialise(model, "normal", seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(9.0)
    return model.eval()


def imported(
    folder: Path,
    *words: str,
    tokenizer: Tokenizer | None = None,
    num_ids: int = NUM_TOKENS,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    **changed: Any,
) -> Transformer:
    """Fill a folder as an import does. Returns the model, with weights as the file keeps them."""
    composition = composition_of("base=llama", *words, num_ids=num_ids)
    model = lively(composition, num_ids)
    tensors = {
        name: tensor.to(dtypes[index % len(dtypes)]) for index, (name, tensor) in enumerate(model.state_dict().items())
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    content = {"schema": 1, "family": "llama", "composition": composition.model_dump(mode="json"), "start_id": None}
    (folder / "model.json").write_text(json.dumps(content | changed), encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model
