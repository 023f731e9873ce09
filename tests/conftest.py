"""What the tests share: tiny sizes, distinct primes where they may be, and a text that tests make up."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from anatomy.about import without_about
from anatomy.axes import AXES, VALUE_AXES
from anatomy.build import build_model
from anatomy.compose import read_command
from anatomy.config import Config, parse_config
from anatomy.files import CONF
from anatomy.model import Transformer, initialise

torch.set_num_threads(1)  # workers share the cores; tiny models gain nothing from more

NUM_SYMBOLS = 29
TINY = ("model.d_model=24", "model.n_layer=3", "model.n_head=4", "model.ctx_len=11")


@cache
def compose(*words: str) -> Config:
    """The config that a command line comes to; a test that wants a fault composes by itself."""
    (request,) = read_command(words, multirun=False).requests
    config, faults = parse_config(request.resolved)
    assert config is not None, faults
    return config


def tiny_model(*words: str, seed: int = 0, salt: int = 0) -> Transformer:
    """A tiny model. Parts are put in from their YAML files: composing each by Hydra would take a tenth of a second."""
    parts = dict(word.split("=") for word in words if word.split("=")[0] in AXES)
    config = compose(*TINY, *(word for word in words if word.split("=")[0] not in AXES or "." in word))
    sections = without_about(
        {axis: OmegaConf.to_container(OmegaConf.load(CONF / axis / f"{name}.yaml")) for axis, name in parts.items()}
    )
    values = {axis: section[axis] for axis, section in sections.items() if axis in VALUE_AXES}
    config = config.model_copy(update=sections | values)
    model = build_model(config, NUM_SYMBOLS, device="cpu")
    initialise(model, config.init, seed=seed, salt=salt)
    return model


def tiny_ids(batch_size: int = 3, length: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(NUM_SYMBOLS, (batch_size, length), generator=torch.Generator().manual_seed(seed))


def options(group: str) -> list[str]:
    """The names of a config group's files: a new part is tested the moment it exists."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 6,000 characters of made-up sentences, 'corpus.path=' for quick runs."""
    return write_text(tmp_path_factory.mktemp("text") / "made-up.txt")


def write_text(path: Path, num_sentences: int = 120) -> Path:
    words = ("norm", "rope", "query", "key", "value", "gate", "token", "layer", "residual", "stream", "of", "the", "a")
    pick = torch.Generator().manual_seed(0)
    draw: Callable[[int], int] = lambda n: int(torch.randint(n, (1,), generator=pick))  # noqa: E731
    sentences = [" ".join(words[draw(len(words))] for _ in range(5 + draw(7))) + "." for _ in range(num_sentences)]
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path
