"""The loop: rates, decay, accumulation, divergence, and an evaluation that leaves no trace."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import compose, tiny_model

from anatomy.config import TrainConfig
from anatomy.corpus import BatchOrder, Corpus, Vocabulary
from anatomy.evaluation import losses_at_length, window_losses
from anatomy.train import Diverged, Training, learning_rate, optimizer_for

CTX_LEN = 11


def made_up_corpus(num_chars: int = 3000) -> Corpus:
    ids = np.random.default_rng(3).integers(29, size=num_chars).astype(np.int32)
    third = num_chars // 3
    parts = [((start, start + third),) for start in (0, third, 2 * third)]
    return Corpus("made up", "", Vocabulary("".join(map(chr, range(97, 126)))), ids, "tail", *parts)


def train_config(*words: str) -> TrainConfig:
    return compose("train.batch_size=6", "train.warmup_steps=3", *words).train


def training(*words: str, model_words: tuple[str, ...] = ("base=llama",), seed: int = 0) -> Training:
    corpus = made_up_corpus()
    order = BatchOrder(corpus.train, CTX_LEN, seed=seed)
    config = train_config(*words)
    model = tiny_model(*model_words, *(word for word in words if word.startswith("train.dropout")))
    return Training(model, corpus, order, config, ctx_len=CTX_LEN, seed=seed)


def weights(run: Training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


# ------------------------------------------------------------------------------------------------ rates


def test_warm_up_begins_above_zero_and_climbs_in_equal_steps() -> None:
    config = train_config("train.lr=1", "train.warmup_steps=4", "train.steps=10")
    assert [learning_rate(step, config) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_the_cosine_ends_exactly_at_its_minimum() -> None:
    config = train_config("train.lr=2", "train.warmup_steps=3", "train.steps=20", "train.min_lr_ratio=0.1")
    rates = [learning_rate(step, config) for step in range(20)]
    assert rates[-1] == pytest.approx(0.2) and max(rates) == rates[3] == 2
    assert all(later < earlier for earlier, later in pairwise(rates[3:]))
    halfway = 0.2 + 1.8 * (1 + math.cos(math.pi * 8 / 16)) / 2
    assert rates[11] == pytest.approx(halfway)


@pytest.mark.parametrize(("warmup", "steps"), [(3, 3), (0, 10), (0, 1), (5, 3), (1, 2)])
def test_odd_schedules_stay_finite_and_positive(warmup: int, steps: int) -> None:
    for schedule in ("cosine", "constant"):
        config = train_config(f"train.warmup_steps={warmup}", f"train.steps={steps}", f"train.schedule={schedule}")
        rates = [learning_rate(step, config) for step in range(steps)]
        assert all(0 < rate <= config.lr for rate in rates)
        assert warmup or rates[0] == config.lr


# ------------------------------------------------------------------------------------------------ steps


def test_weight_decay_shrinks_linear_weights_and_nothing_else() -> None:
    model = tiny_model("base=gpt2")
    config = train_config("train.lr=0.1", "train.weight_decay=0.3")
    optimizer = optimizer_for(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.5, 1)
            parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.3 if name.endswith("_proj.weight") else 1
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_accumulation_is_the_same_step_as_one_large_batch() -> None:
    large = training("train.batch_size=8", "train.steps=5")
    small = training("train.batch_size=2", "train.grad_accum_steps=4", "train.steps=5")
    for run in (large, small):
        run.step()
    assert large.last_loss_nats == pytest.approx(small.last_loss_nats, abs=1e-6)
    assert large.last_grad_norm == pytest.approx(small.last_grad_norm, rel=1e-5)
    torch.testing.assert_close(weights(large), weights(small), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", ["0.0", "0.3"])
def test_an_evaluation_cannot_disturb_training(dropout: str) -> None:
    alone, watched = (training(f"train.dropout={dropout}", "train.steps=9") for _ in range(2))
    for run in (alone, watched):
        torch.manual_seed(0)
        for _ in range(3):
            run.step()
            if run is watched:
                starts = run.corpus.windows("val", CTX_LEN, 17)
                first = window_losses(run.model, run.corpus, starts, CTX_LEN, dtype="fp32")
                assert (first == window_losses(run.model, run.corpus, starts, CTX_LEN, dtype="fp32")).all()
                assert run.model.training
    torch.testing.assert_close(weights(alone), weights(watched), rtol=0, atol=0)
    assert alone.order.sha256 == watched.order.sha256


def test_dropout_is_at_work_in_training_and_off_in_evaluation() -> None:
    dropped, plain = training("train.dropout=0.5"), training("train.dropout=0.0")
    starts = dropped.corpus.windows("val", CTX_LEN, 5)
    losses = [window_losses(run.model, run.corpus, starts, CTX_LEN, dtype="fp32") for run in (dropped, plain)]
    np.testing.assert_array_equal(*losses)
    for run in (dropped, plain):
        run.step()
    assert dropped.last_loss_nats != plain.last_loss_nats


@pytest.mark.parametrize("part", ["norm=layer", "placement=post", "pos=learned", "attn=mha", "ffn=gelu", "tying=tied"])
def test_no_part_changes_the_order_of_the_batches(part: str) -> None:
    runs = [training(model_words=("base=llama", *words)) for words in ((), (part,))]
    for run in runs:
        run.step()
        run.step()
    assert runs[0].order.sha256 == runs[1].order.sha256


def test_a_state_restored_elsewhere_goes_on_bit_identically(tmp_path: Path) -> None:
    words = ("train.dropout=0.2", "train.grad_accum_steps=2", "train.steps=8")
    straight = training(*words)
    for _ in range(3):
        straight.step()
    torch.save(straight.state(), tmp_path / "state.pt")
    for _ in range(4):
        straight.step()
    resumed = training(*words)
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(4):
        resumed.step()
    torch.testing.assert_close(weights(straight), weights(resumed), rtol=0, atol=0)
    assert straight.order.sha256 == resumed.order.sha256
    assert (straight.last_lr, straight.last_loss_nats) == (resumed.last_lr, resumed.last_loss_nats)


def test_bfloat16_autocast_keeps_float32_weights_and_nearly_the_loss() -> None:
    full, half = training(), training("train.dtype=bf16")
    for run in (full, half):
        run.step()
    assert all(tensor.dtype == torch.float32 for tensor in weights(half).values())
    assert full.last_loss_nats != half.last_loss_nats
    assert full.last_loss_nats == pytest.approx(half.last_loss_nats, abs=0.02)


# ------------------------------------------------------------------------------------------------ divergence


def test_a_loss_that_is_not_a_number_is_a_divergence() -> None:
    run = training()
    with torch.no_grad():
        run.model.blocks[1].ffn.down_proj.weight[0, 0] = math.nan
    with pytest.raises(Diverged, match="step 1: loss nan"):
        run.step()


def test_a_loss_far_above_its_beginning_is_a_divergence() -> None:
    run = training("train.lr=3", "train.warmup_steps=0", "train.steps=50", model_words=("base=gpt2",))
    with pytest.raises(Diverged, match="above 3 times where it began"):
        for _ in range(50):
            run.step()


# ------------------------------------------------------------------------------------------------ evaluation


def test_window_losses_equal_one_forward_pass_a_window() -> None:
    model, corpus = tiny_model(), made_up_corpus()
    starts = corpus.windows("test", CTX_LEN)
    losses = window_losses(model, corpus, starts, CTX_LEN, dtype="fp32")
    for start, row in list(zip(starts, losses, strict=True))[::13]:
        ids = torch.from_numpy(corpus.ids[start : start + CTX_LEN + 1].astype(np.int64))
        with torch.no_grad():
            log_probabilities = model(ids[None, :-1])[0].log_softmax(-1)
        expected = -log_probabilities[torch.arange(CTX_LEN), ids[1:]]
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_losses_at_length_score_the_same_targets_with_more_context() -> None:
    model, corpus = tiny_model("base=llama"), made_up_corpus()
    at_length = losses_at_length(model, corpus, [5, 11, 40], num_tokens=400, dtype="fp32").by_length
    starts = corpus.windows("test", 40, 10)
    for length in (5, 11, 40):
        losses = [
            window_losses(model, corpus, np.array([start + 40 - length]), length, dtype="fp32")[0, -5:]
            for start in starts
        ]
        assert at_length[str(length)] == pytest.approx(float(np.mean(losses)), abs=1e-5)


def test_a_length_past_the_last_learned_position_has_no_loss_and_the_rest_stays() -> None:
    at_length = losses_at_length(tiny_model(), made_up_corpus(), [7, 11, 12], num_tokens=400, dtype="fp32").by_length
    assert at_length["12"] is None and at_length["7"] and at_length["11"]
