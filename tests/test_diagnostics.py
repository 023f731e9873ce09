"""Diagnostics: each number against a slow computation of its own, and that measuring changes nothing it measures."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_runner import SMALL, job, strict_json

from anatomy.build import build_model
from anatomy.compose import read_command
from anatomy.corpus import BatchOrder
from anatomy.diagnostics import KINDS, copied, lacking
from anatomy.errors import UserError
from anatomy.model import Transformer, initialise
from anatomy.runner import Job, run
from anatomy.sampling import Stream
from anatomy.sweep import make_plan

ALL = f"diagnostics=[{','.join(KINDS)}]"
COMPOSITIONS = {
    "vanilla": ("model.n_head=4",),
    "llama": ("base=llama", "model.n_head=4", "train.grad_accum_steps=2", "bias=all"),
    "tied": ("base=gpt2", "model.n_head=4"),
}


@pytest.fixture(scope="module", params=COMPOSITIONS)
def diagnosed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Job:
    words = ("train.eval_every=1", "train.steps=4", *COMPOSITIONS[request.param])
    made = job(tmp_path_factory.mktemp("outputs"), text_file, ALL, *words)
    assert run(made, [])["status"] == "done"
    return made


def read(made: Job) -> dict:
    return strict_json(made.folder / "diagnostics.json")


def model_of(made: Job, weights: str) -> Transformer:
    model = build_model(made.config, len(made.corpus.vocabulary), device="cpu")
    if weights == "start":
        initialise(model, made.config.init, seed=made.config.seed)
    else:
        model.load_state_dict(load_file(made.folder / weights))
    return model.eval()


def windows(made: Job) -> torch.Tensor:
    length = made.config.model.ctx_len
    starts = made.corpus.windows("val", length, 32)
    return torch.from_numpy(np.stack([made.corpus.ids[s : s + length] for s in starts]).astype(np.int64))


def test_gradient_norms_add_up_to_the_norm_of_the_first_step(diagnosed: Job) -> None:
    start = read(diagnosed)["gradients"]["start"]
    assert len(start["attn"]) == len(start["ffn"]) == 2
    norms = [start["embed"], start["pos"], start["output"], *start["attn"], *start["ffn"]]
    whole = math.sqrt(sum(norm**2 for norm in norms if norm is not None))
    first = [json.loads(line) for line in (diagnosed.folder / "metrics.jsonl").read_text().splitlines()][1]
    assert whole == pytest.approx(first["grad_norm"], rel=1e-5)


def test_gradient_norms_are_those_of_their_layers_tensors(diagnosed: Job) -> None:
    model, corpus, train = model_of(diagnosed, "start"), diagnosed.corpus, diagnosed.config.train
    order = BatchOrder(corpus.train, 16, seed=diagnosed.config.seed)
    losses = []
    for _ in range(train.grad_accum_steps):
        for start in order.draw(train.batch_size):
            ids = torch.from_numpy(corpus.ids[start : start + 17].astype(np.int64))
            losses.append(torch.nn.functional.cross_entropy(model(ids[None, :-1])[0], ids[1:]))
    names, tensors = zip(*model.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(torch.stack(losses).mean(), tensors), strict=True))

    def norm(*prefixes: str) -> float | None:
        values = [g.flatten() for name, g in gradients.items() if name.startswith(prefixes)]
        return float(torch.cat(values).norm()) if values else None

    expected = {
        "embed": norm("embed."),
        "pos": norm("pos."),
        "attn": [norm(f"blocks.{i}.attn.", f"blocks.{i}.attn_norm.") for i in range(2)],
        "ffn": [norm(f"blocks.{i}.ffn.", f"blocks.{i}.ffn_norm.") for i in range(2)],
        "output": norm("final_norm.", "output."),
    }
    found = read(diagnosed)["gradients"]["start"]
    assert list(found) == list(expected)
    for place, value in expected.items():
        assert found[place] == (None if value is None else pytest.approx(value, rel=1e-4)), place


@pytest.mark.parametrize(("moment", "weights"), [("start", "start"), ("last", "model.safetensors")])
def test_activations_are_the_root_mean_squares_of_the_residual_stream(
    diagnosed: Job, moment: str, weights: str
) -> None:
    model, ids = model_of(diagnosed, weights), windows(diagnosed)
    with torch.no_grad():
        positions = torch.arange(ids.shape[1])
        stream = [model.pos(model.embed(ids), positions)]
        for block in model.blocks:
            stream.append(block(stream[-1], model.pos.rotation(positions)))
    expected = [float((x**2).mean().sqrt()) for x in stream]
    assert read(diagnosed)["activations"][moment] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("moment", "weights"), [("start", "start"), ("last", "model.safetensors")])
def test_attention_is_that_of_a_slow_loop_over_heads_and_positions(diagnosed: Job, moment: str, weights: str) -> None:
    model, ids = model_of(diagnosed, weights), windows(diagnosed)
    inputs: list[tuple] = []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda _, given: inputs.append(given[:2]))
    with torch.no_grad():
        model(ids)
        found = read(diagnosed)["attention"][moment]
        for layer, (block, given) in enumerate(zip(model.blocks, inputs, strict=True)):
            q, k, _ = block.attn.project(*given)
            per_group, entropies, largest = q.shape[1] // k.shape[1], torch.zeros(q.shape[1]), -math.inf
            for head in range(q.shape[1]):
                for t in range(q.shape[2]):
                    keys = k[:, head // per_group, : t + 1]
                    logits = torch.einsum("bk,bsk->bs", q[:, head, t], keys) / q.shape[3] ** 0.5
                    entropies[head] += torch.distributions.Categorical(logits=logits).entropy().mean() / q.shape[2]
                    largest = max(largest, float(logits.max()))
            assert found["entropy_nats"][layer] == pytest.approx(entropies.tolist(), rel=1e-4)
            assert found["largest_logit"][layer] == pytest.approx(largest, rel=1e-4)


def test_copying_is_of_samples_that_go_on_from_validation_windows(diagnosed: Job) -> None:
    for moment, weights in (("last", "model.safetensors"), ("best", "best.safetensors")):
        model, corpus = model_of(diagnosed, weights), diagnosed.corpus
        starts = corpus.windows("val", 16 + 200, 64)  # so that the text itself goes on for as long
        texts = [corpus.ids[start : start + 16].astype(np.int64).tolist() for start in starts]
        for index, text in enumerate(texts):
            stream, begin = Stream(diagnosed.config.seed, index), 0
            for _ in range(200):
                if len(text) - begin > 16:  # the context is full: only its newer half is read on
                    begin = len(text) - 8
                with torch.no_grad():
                    logits = model(torch.tensor([text[begin:]]))[0, -1]
                text.append(drawn_by_hand((logits.double() / 0.8).softmax(-1).tolist(), stream.uniform()))
        written = [corpus.vocabulary.decode(text[16:]) for text in texts]
        train = [corpus.vocabulary.decode(corpus.ids[a:b]) for a, b in corpus.train]
        share, longest = slow_copies(written, train)
        real = [corpus.vocabulary.decode(corpus.ids[start + 16 : start + 216]) for start in starts]
        share_of_text, longest_of_text = slow_copies(real, train)
        found = read(diagnosed)["copying"][moment]
        assert found == {
            "num_samples": len(starts),
            "num_chars": 200 * len(starts),
            "share": pytest.approx(share),
            "longest_chars": longest,
            "share_of_text": pytest.approx(share_of_text),
            "longest_chars_of_text": longest_of_text,
        }


def drawn_by_hand(probabilities: list[float], uniform: float) -> int:
    total = 0.0
    for index, probability in enumerate(probabilities):
        total += probability
        if uniform < total:
            return index
    return len(probabilities) - 1


def slow_copies(written: list[str], train: list[str]) -> tuple[float, int]:
    """By looking every stretch of every sample up in every stretch of training text."""
    longest, num_copied = 0, 0
    for sample in written:
        is_copied = [False] * len(sample)
        for i in range(len(sample)):
            length = 0
            while i + length < len(sample) and any(sample[i : i + length + 1] in text for text in train):
                length += 1
            longest = max(longest, length)
            if length >= 20:
                is_copied[i : i + length] = [True] * length
        num_copied += sum(is_copied)
    return num_copied / sum(map(len, written)), longest


@pytest.mark.parametrize("num_symbols", [2, 3, 30])
@pytest.mark.parametrize("seed", range(4))
def test_copies_are_found_as_by_looking_every_stretch_up(num_symbols: int, seed: int) -> None:
    rng = random.Random(seed)
    letters = [chr(97 + i) for i in range(num_symbols)]
    train = ["".join(rng.choices(letters, k=rng.randrange(150))) for _ in range(3)]
    samples = ["".join(rng.choices(letters, k=60)) for _ in range(3)]
    if seed % 2 and train[0][40:]:
        cut = train[0][5 : 5 + rng.randrange(18, 40)]
        samples[1] = (samples[1][:13] + cut + samples[1])[:60]
    as_ids = lambda texts: [np.array([ord(c) - 97 for c in text], np.int32) for text in texts]  # noqa: E731
    share, longest = copied(np.stack(as_ids(samples)), as_ids(train))
    assert (pytest.approx(share), longest) == slow_copies(samples, train)


def test_a_copy_does_not_reach_over_the_end_of_a_stretch_of_training_text() -> None:
    train = [np.arange(30), np.arange(30, 60)]
    assert copied(np.arange(15, 45)[None], train) == (0.0, 15)
    assert copied(np.arange(60)[None], train) == (1.0, 30)


# ------------------------------------------------------------------------------------------------ before and after


def test_measuring_changes_nothing_of_the_run(tmp_path: Path, text_file: Path) -> None:
    words = ("train.dropout=0.1",)
    plain, measured = job(tmp_path / "a", text_file, *words), job(tmp_path / "b", text_file, *words, ALL)
    assert plain.name == measured.name
    run(plain, [])
    run(measured, [])
    assert not (plain.folder / "diagnostics.json").exists()
    for name in ("model.safetensors", "best.safetensors", "test_losses.npy"):
        assert (plain.folder / name).read_bytes() == (measured.folder / name).read_bytes()
    ours, theirs = strict_json(plain.folder / "result.json"), strict_json(measured.folder / "result.json")
    assert ours["sample"] == theirs["sample"] and ours["test_loss_nats"] == theirs["test_loss_nats"]


def test_a_run_that_is_done_is_measured_without_training_and_gives_the_same(tmp_path: Path, text_file: Path) -> None:
    words = ("train.dropout=0.1", "init_salt=1", "order_salt=2", "seed=3")
    fresh = job(tmp_path / "fresh", text_file, *words, ALL)
    run(fresh, [])
    later = job(tmp_path / "later", text_file, *words)
    run(later, [])
    before = (later.folder / "result.json").read_bytes()
    for i, kind in enumerate(KINDS):
        torch.manual_seed(i)
        before_it = torch.get_rng_state()
        run(job(tmp_path / "later", text_file, *words, f"diagnostics=[{kind}]"), [])
        assert torch.equal(torch.get_rng_state(), before_it), f"{kind} draws from torch's own generator"
    assert (later.folder / "result.json").read_bytes() == before
    assert read(later) == read(fresh)


def test_a_plan_counts_a_run_that_lacks_diagnostics_as_to_do_and_quick(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file)
    record = run(made, []) | {"wall_s": 600.0}
    (made.folder / "result.json").write_text(json.dumps(record))
    overrides = [word for word in _words(tmp_path, text_file) if not word.startswith("diagnostics")]
    assert "1 run: 1 done" in str(make_plan(read_command(overrides, multirun=True)))
    plan = make_plan(read_command([*overrides, "diagnostics=[gradients]"], multirun=True))
    assert str(plan) == "1 run: 1 to do, about 5 s"
    run(job(tmp_path, text_file, "diagnostics=[gradients]"), [])
    assert "1 run: 1 done" in str(make_plan(read_command([*overrides, "diagnostics=[gradients]"], multirun=True)))


def _words(outputs: Path, text: Path) -> list[str]:
    return [*SMALL, "corpus=files", f"corpus.path='{text}'", f"output_dir='{outputs}'"]


def test_a_diverged_run_gets_what_can_be_had(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "train.lr=1000", "train.warmup_steps=0", ALL)
    assert run(made, [])["status"] == "diverged"
    found = read(made)
    assert found["gradients"]["start"]["embed"] > 0
    assert found["activations"]["start"][0] > 0 and found["activations"]["last"] is None
    assert found["attention"]["last"] is None and found["copying"]["last"] is None
    assert found["copying"]["best"]["num_chars"] > 0


def test_a_damaged_file_is_measured_anew_and_another_kind_is_added(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "diagnostics=gradients")
    run(made, [])
    whole = (made.folder / "diagnostics.json").read_bytes()
    (made.folder / "diagnostics.json").write_bytes(whole[:40])
    assert lacking(made.folder, KINDS) == KINDS
    run(made, [])
    assert (made.folder / "diagnostics.json").read_bytes() == whole
    run(job(tmp_path, text_file, "diagnostics=[activations]"), [])
    assert list(read(made)) == ["schema", "gradients", "activations"]


def test_a_run_made_anew_is_measured_anew(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "diagnostics=gradients")
    run(made, [])
    (made.folder / "result.json").write_text("{}")
    run(job(tmp_path, text_file), [])
    assert not (made.folder / "diagnostics.json").exists()


def _lose_weights(made: Job) -> None:
    (made.folder / "model.safetensors").unlink()


def _cut_weights(made: Job) -> None:
    file = made.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def _other_start(made: Job) -> None:
    record = strict_json(made.folder / "result.json")
    record["init_digests"]["embed.weight"] = "0" * 64
    (made.folder / "result.json").write_text(json.dumps(record))


@pytest.mark.parametrize("damage", [_lose_weights, _cut_weights, _other_start])
def test_what_cannot_be_measured_afterwards_is_said_in_one_line(
    tmp_path: Path, text_file: Path, damage: Callable[[Job], None]
) -> None:
    made = job(tmp_path, text_file)
    run(made, [])
    damage(made)
    with pytest.raises(UserError, match="force=true trains") as error:
        run(job(tmp_path, text_file, "diagnostics=[activations]"), [])
    assert "\n" not in str(error.value) and made.name in str(error.value)


@pytest.mark.parametrize("word", ["diagnostics=[gradient]", "diagnostics=gradient", "diagnostics=[gradients,7]"])
def test_an_unknown_kind_is_refused_in_one_line_that_names_all(word: str) -> None:
    with pytest.raises(UserError) as error:
        make_plan(read_command([word], multirun=False))
    assert "\n" not in str(error.value) and str(error.value).startswith("diagnostics")
    assert all(kind in str(error.value) for kind in KINDS)


def test_several_kinds_without_brackets_are_no_sweep() -> None:
    with pytest.raises(UserError, match=r"type diagnostics=\[gradients,copying\]$"):
        read_command(["diagnostics=gradients,copying"], multirun=True)
