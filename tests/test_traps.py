"""The loading traps: each wrong model is the one that somebody gets who makes the mistake, said in another way.

What transformers computes when its own code or tensors are spoilt is held against ours.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from published_models import CONTEXT, VOCABULARY, logits_of, published, random_ids, saved
from safetensors.torch import load_file
from test_checkpoints_gguf import write_gguf
from test_cli_convert import Done

from anatomy.checkpoints.importing import PublishedModel
from anatomy.checkpoints.tokenizers_of import tokenizer_of_chars
from anatomy.checkpoints.traps import (
    TRAPS,
    Cost,
    Outcome,
    cost,
    filled,
    go_on,
    in_memory,
    published_model,
    read,
    write_wrong,
)
from anatomy.cli import convert as convert_command
from anatomy.cli import sample as sample_command
from anatomy.cli.traps import PROMPT, TEXT
from anatomy.errors import UserError
from anatomy.loading import load
from anatomy.sample import sample
from anatomy.sampling import Knobs

PAGE = Path(__file__).resolve().parent.parent / "docs" / "labs" / "loading_traps.md"
NEAR = 2e-4  # of logits of some tens


def wrong_model(folder: Path, name: str) -> PublishedModel:
    return TRAPS[name].spoil(in_memory(published_model(folder)))


@torch.no_grad()
def logits(model: PublishedModel) -> torch.Tensor:
    return filled(model)(random_ids())


def spoilt(kind: str, tmp_path: Path, name: str, spoil: Callable[[Any], object]) -> None:
    """Hold a wrong model against one of transformers spoilt by other means; both are far from the right one."""
    folder, theirs = saved(tmp_path / "theirs", kind)
    right, ours = logits_of(theirs, random_ids()), logits(wrong_model(folder, name))
    spoil(theirs)
    assert (ours - logits_of(theirs, random_ids())).abs().max() < NEAR
    assert (ours - right).abs().max() > 1


# ------------------------------------------------------------------------------------------------ what each does


@pytest.mark.parametrize("kind", ["llama", "llama-biases", "mistral", "qwen2", "qwen3"])
def test_names_exchange_gate_and_up(kind: str, tmp_path: Path) -> None:
    def exchange(theirs: Any) -> None:
        for layer in theirs.model.layers:
            layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj

    spoilt(kind, tmp_path, "names", exchange)


def test_names_exchange_the_norms_where_there_is_no_gate(tmp_path: Path) -> None:
    def exchange(theirs: Any) -> None:
        for block in theirs.transformer.h:
            block.ln_1, block.ln_2 = block.ln_2, block.ln_1

    spoilt("gpt2", tmp_path, "names", exchange)


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-untied"])
def test_of_gpt2_the_output_of_attention_alone_is_square_in_the_file(kind: str, tmp_path: Path) -> None:
    def transpose(theirs: Any) -> None:
        for block in theirs.transformer.h:
            block.attn.c_proj.weight.data = block.attn.c_proj.weight.data.t().contiguous()

    spoilt(kind, tmp_path, "transpose", transpose)


@pytest.mark.parametrize(
    ("kind", "squares"), [("llama-tied", "qo"), ("mistral-no-window", "qo"), ("llama-attention-bias", "qkvo")]
)
def test_of_llama_every_square_matrix_is_transposed(kind: str, squares: str, tmp_path: Path) -> None:
    def transpose(theirs: Any) -> None:
        for layer in theirs.model.layers:
            for letter in squares:
                matrix = layer.self_attn.get_submodule(f"{letter}_proj").weight
                assert matrix.shape[0] == matrix.shape[1]
                matrix.data = matrix.data.t().contiguous()

    spoilt(kind, tmp_path, "transpose", transpose)


def neighbours_turned(q: Any, k: Any, cos: Any, sin: Any, *_: object, **__: object) -> tuple[Any, Any]:
    """RoPE as the paper has it: channels 2i and 2i + 1 are one complex number, turned by the angle of pair i."""
    half = cos.shape[-1] // 2
    turn = torch.complex(cos[..., :half], sin[..., :half]).unsqueeze(1)
    pairs = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn for x in (q, k))
    q_turned, k_turned = (torch.view_as_real(x).flatten(-2) for x in pairs)
    return q_turned, k_turned


@pytest.mark.parametrize("kind", ["llama", "llama-yarn", "llama-biases", "mistral", "qwen2", "qwen3-window"])
def test_rope_turns_neighbouring_channels(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pair(theirs: Any) -> None:
        code = sys.modules[type(theirs).__module__]
        assert code.apply_rotary_pos_emb
        monkeypatch.setattr(code, "apply_rotary_pos_emb", neighbours_turned)

    spoilt(kind, tmp_path, "rope_pairing", pair)


@pytest.mark.parametrize("kind", ["llama", "llama-biases", "llama-tied", "mistral", "qwen2", "qwen3"])
def test_kv_heads_are_tiled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tile(theirs: Any) -> None:
        code = sys.modules[type(theirs).__module__]
        assert code.repeat_kv
        monkeypatch.setattr(code, "repeat_kv", lambda heads, times: heads.repeat(1, times, 1, 1))

    spoilt(kind, tmp_path, "kv_order", tile)


@pytest.mark.parametrize("kind", ["llama", "gpt2-untied", "qwen2"])
def test_an_untied_output_becomes_the_embedding(kind: str, tmp_path: Path) -> None:
    def tie(theirs: Any) -> None:
        theirs.lm_head.weight = theirs.get_input_embeddings().weight

    spoilt(kind, tmp_path, "tying", tie)


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2", "qwen3"])
def test_a_tied_output_is_left_at_random(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    output = wrong_model(saved(folder, kind)[0], "tying").tensors["output.weight"].read()
    embed = published(kind).get_input_embeddings().weight
    assert output.shape == embed.shape and abs(output.std() - 0.02) < 0.001
    assert abs(torch.corrcoef(torch.stack((output.flatten(), embed.detach().flatten())))[0, 1]) < 0.1

    def untie(theirs: Any) -> None:
        theirs.lm_head = torch.nn.Linear(*output.shape[::-1], bias=False)
        theirs.lm_head.weight.data = output

    spoilt(kind, folder.parent / "again", "tying", untie)


# ------------------------------------------------------------------------------------------ who is spared, and why


@pytest.mark.parametrize(
    ("kind", "changed", "name", "reason"),
    [
        ("gpt2", {}, "rope_pairing", "it has no RoPE"),
        ("gpt2", {}, "kv_order", "each query head has keys and values of its own"),
        ("llama-attention-bias", {}, "kv_order", "each query head has keys and values of its own"),
        ("mistral-no-window", {}, "kv_order", "all query heads read its one head of keys and values"),
        ("llama", {}, "transpose", "no matrix of its blocks is square"),
        ("llama", {"head_dim": 2}, "rope_pairing", "each head has but one pair of channels"),
    ],
)
def test_where_there_is_nothing_to_get_wrong_the_reason_is_said(
    kind: str, changed: dict[str, int], name: str, reason: str, tmp_path: Path
) -> None:
    folder, _ = saved(tmp_path / "theirs", kind, **changed)
    assert reason in TRAPS[name].spared(published_model(folder))
    with pytest.raises(UserError, match=f"--trap {name}: nothing to get wrong here: .*{reason}"):
        write_wrong(published_model(folder), TRAPS[name], tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama-tied", "llama-attention-bias", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", TRAPS)
def test_a_model_that_is_spared_would_compute_the_same_and_any_other_does_not(
    kind: str, name: str, tmp_path: Path
) -> None:
    folder, theirs = saved(tmp_path / "theirs", kind)
    right = published_model(folder)
    if not TRAPS[name].spared(right):
        assert (logits(wrong_model(folder, name)) - logits_of(theirs, random_ids())).abs().max() > 1
    elif kind != "gpt2" or name != "rope_pairing":
        unasked = {stored: tensor.read() for stored, tensor in TRAPS[name].changed(right).items()}
        for stored, tensor in unasked.items():
            assert torch.equal(tensor, right.tensors[stored].read())


@pytest.mark.parametrize("kind", ["gpt2", "llama-tied", "qwen3-window"])
@pytest.mark.parametrize("name", TRAPS)
def test_nothing_about_names_and_shapes_is_wrong(kind: str, name: str, tmp_path: Path) -> None:
    right = published_model(saved(tmp_path / "theirs", kind)[0])
    if TRAPS[name].spared(right):
        pytest.skip("nothing to get wrong")
    wrong = TRAPS[name].spoil(right)
    of_its_own = {"output.weight"} if name == "tying" and right.composition.tying == "tied" else set()
    assert set(wrong.tensors) - set(right.tensors) == of_its_own
    for stored in right.tensors:
        assert wrong.tensors[stored].read().shape == right.tensors[stored].shape == wrong.tensors[stored].shape
        assert wrong.tensors[stored].dtype == right.tensors[stored].dtype


def test_nothing_is_read_before_it_is_asked_for_and_what_is_right_is_shared(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", published("llama-tied"))
    right = published_model(file)
    asked: list[str] = []

    def counted(name: str) -> Any:
        stored = right.tensors[name]

        def reads() -> torch.Tensor:
            asked.append(name)
            return stored.read()

        return stored._replace(read=reads)

    right = PublishedModel(**{**vars(right), "tensors": {name: counted(name) for name in right.tensors}})
    wrong = {name: trap.spoil(right) for name, trap in TRAPS.items()}
    assert len(wrong) == 5 and not asked
    held = in_memory(right)
    model, other = filled(held), filled(TRAPS["rope_pairing"].spoil(held))
    for name, tensor in model.state_dict().items():
        is_same = tensor.data_ptr() == other.get_parameter(name).data_ptr()
        assert is_same == (not name.endswith(("q_proj.weight", "k_proj.weight")))


def test_a_gguf_file_and_a_folder_of_one_model_are_wrong_alike(tmp_path: Path) -> None:
    folder, theirs = saved(tmp_path / "theirs", "llama")
    file = write_gguf(tmp_path / "tiny.gguf", theirs)
    for name in ("names", "rope_pairing", "kv_order", "tying"):
        assert (logits(wrong_model(folder, name)) - logits(wrong_model(file, name))).abs().max() < NEAR


# ------------------------------------------------------------------------------------------------ what it costs


def test_every_token_but_the_first_is_predicted_once_whatever_is_read_at_once(tmp_path: Path) -> None:
    model = filled(in_memory(published_model(saved(tmp_path / "theirs", "llama")[0])))
    (ids,) = random_ids(1, 71).tolist()
    for context in (7, 10, 70, 128):
        outcome = read(model, ids, context, [], 0)
        for target in range(1, len(ids)):
            place = (target - 1) % context
            seen = ids[target - 1 - place : target]
            with torch.no_grad():
                scores = model(torch.tensor([seen]))[0, -1]
            assert torch.isclose(outcome.losses_nats[target - 1], -F.log_softmax(scores, -1)[ids[target]], atol=1e-4)
            assert outcome.likeliest[target - 1] == scores.argmax()
            num_at_once = min(context, len(ids) - target + place)
            assert outcome.is_early[target - 1] == (place < num_at_once / 2)
        with torch.no_grad():
            assert torch.allclose(outcome.first_logits, model(torch.tensor([ids[:1]]))[0, 0], atol=1e-4)
        assert outcome.losses_nats.shape == (70,) and outcome.written == []


def outcome(losses: list[float], likeliest: list[int], first: float) -> Outcome:
    is_early = torch.arange(len(losses)) < len(losses) / 2
    return Outcome(torch.tensor(losses), torch.tensor(likeliest), is_early, torch.tensor([first, 0.0]), [])


def test_what_is_lost_is_lost_beside_the_right_model() -> None:
    right = outcome([1.0, 2.0, 3.0], [5, 6, 7], 1.0)
    assert cost(outcome([2.0, 2.5, 7.0], [5, 0, 0], 1.0), right) == Cost(
        pytest.approx(5.5 / 3), pytest.approx(0.75), pytest.approx(4.0), pytest.approx(1 / 3), True
    )
    told = cost(outcome([1.0], [5], 1.5), outcome([2.0], [5], 1.0))
    assert (told.lost, told.same_share, told.is_right_at_first) == (
        -1.0,
        1.0,
        False,
    ) and math.isnan(told.lost_late)


def test_only_the_pairing_of_rope_is_right_behind_the_first_token(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama-tied")
    model = filled(in_memory(published_model(folder)))
    ids = [1, *go_on(model, [1], 70, temperature=1.0)]  # a text that the right model knows best
    right = read(model, ids, CONTEXT, [], 0)
    costs = {name: cost(read(filled(wrong_model(folder, name)), ids, CONTEXT, [], 0), right) for name in TRAPS}
    assert [name for name, told in costs.items() if told.is_right_at_first] == ["rope_pairing"]
    assert all(told.lost > 0.1 and told.same_share < 0.9 for told in costs.values())


def test_models_go_on_as_they_do_elsewhere(tmp_path: Path) -> None:
    folder = spoken(saved(tmp_path / "theirs", "qwen3")[0])
    write_wrong(published_model(folder), TRAPS["kv_order"], tmp_path / "wrong")
    opened = load(tmp_path / "wrong")
    prompt = opened.codec.encode("the river").tolist()
    for temperature in (0.0, 1.0):
        (told,) = sample(
            opened.model, opened.codec, "the river", window=CONTEXT, num_tokens=9, knobs=Knobs(temperature), seed=4
        )
        written = go_on(opened.model, prompt, 9, temperature=temperature, seed=4)
        assert opened.codec.decode(written) == told.continuation


# ------------------------------------------------------------------------------------------------ as it is typed


def spoken(folder: Path, surplus: str = "#") -> Path:
    """Give a model of VOCABULARY tokens a character for each: those of our text, and others."""
    chars = sorted({*TEXT, *surplus}) + [chr(0x4E00 + index) for index in range(VOCABULARY)]
    tokenizer_of_chars("".join(chars[:VOCABULARY])).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process."""

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["anatomy-convert", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            convert_command.main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return call


def rows_of(out: str) -> dict[str, list[str]]:
    cells = [re.split(r"\s{2,}", line.strip()) for line in out.split("\n\n")[1].splitlines()[1:]]
    return {name: rest for name, *rest in cells}


def test_all_traps_stand_in_a_table_beside_the_right_model(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder = spoken(saved(tmp_path / "theirs", "llama-tied")[0])
    done = convert(folder, "--trap", "all")
    assert done.code == 0 and not done.err
    head, guess = done.out.splitlines()[:2]
    assert head == f"{folder}: llama; it reads {len(TEXT)} tokens, a text of our own"
    assert guess == f"a guess among its {VOCABULARY} tokens loses {4.205:.3f} nats"
    rows = rows_of(done.out)
    assert list(rows) == ["right", *TRAPS] and len(rows["right"]) == 2 and f"{PROMPT!r}" in done.out
    for name, (nats, lost, early, late, same, written) in list(rows.items())[1:]:
        assert abs(float(nats) - float(rows["right"][0]) - float(lost)) < 0.0011
        assert abs((float(early) + float(late)) / 2 - float(lost)) < 0.3
        assert 0 <= int(same.removesuffix("%")) < 60 and written != rows["right"][1]
        assert f"\n{name}: {TRAPS[name].mistake}" in done.out
    assert done.out.count("its logits are the right ones") == 1
    assert sorted(tmp_path.iterdir()) == [folder]


def test_a_text_and_a_prompt_of_ones_own_are_read(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, text = spoken(saved(tmp_path / "theirs", "llama")[0]), tmp_path / "text"
    text.write_text("the river is the river. " * 100)
    done = convert(folder, "--trap", "names", "--text", text, "--prompt", "the boats")
    assert done.code == 0 and "it reads 1,024 tokens, the first of" in done.out and "has 2,400" in done.out
    assert "'the boats'" in done.out and list(rows_of(done.out)) == ["right", "names"]


def test_a_model_without_our_letters_writes_the_text_itself(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, _ = saved(tmp_path / "theirs", "gpt2")
    done = convert(folder, "--trap", "transpose")
    assert "97 tokens, a text that the right model wrote itself, for it has no tokenizer (" in done.out
    rows = rows_of(done.out)
    assert float(rows["transpose"][1]) > 0.1 and "goes on" not in done.out
    tokenizer_of_chars("".join(sorted(set(TEXT) - {"w"}))).save(str(folder / "tokenizer.json"))
    again = convert(folder, "--trap", "transpose")
    assert "wrote itself, for its tokenizer has no 'w', which our text has" in again.out and PROMPT in again.out
    assert rows_of(again.out)["transpose"][:4] == rows["transpose"][:4]


def test_what_harms_a_model_not_is_said_below_the_table(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder = spoken(saved(tmp_path / "theirs", "gpt2")[0])
    done = convert(folder, "--trap", "kv_order", "--trap", "names", "--trap", "kv_order")
    assert done.code == 0 and list(rows_of(done.out)) == ["right", "names"]
    assert done.out.count("kv_order: nothing to get wrong in this model: each query head has keys and values") == 1


def test_a_wrong_model_can_be_written_opened_and_heard_and_is_marked(
    tmp_path: Path, convert: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = published("llama-tied").to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "theirs")
    folder, wrong = spoken(tmp_path / "theirs"), tmp_path / "wrong"
    done = convert(folder, wrong, "--trap", "tying", "--trap", "tying")
    assert done.code == 0 and f"anatomy-sample {wrong} --prompt" in done.out.splitlines()[-1]
    record = json.loads((wrong / "model.json").read_text())
    assert record["trap"] == "tying" and record["parity"] is None and record["composition"]["tying"] == "untied"
    assert record["num_params"] == sum(tensor.numel() for tensor in load_file(wrong / "model.safetensors").values())
    assert {tensor.dtype for tensor in load_file(wrong / "model.safetensors").values()} == {torch.bfloat16}
    with torch.no_grad():
        meant = in_memory(TRAPS["tying"].spoil(published_model(folder)))
        assert (load(wrong).model(random_ids()) - logits(meant)).abs().max() < NEAR
    monkeypatch.setattr(sys, "argv", ["anatomy-sample", str(wrong), "--prompt", "the", "--tokens", "3"])
    with pytest.raises(SystemExit) as ended:
        sample_command.main()
    said = capsys.readouterr()
    assert not ended.value.code and said.out.startswith("the")
    assert f"note: '{wrong}': loaded wrongly on purpose, by the trap tying" in said.err
    again = convert(wrong, tmp_path / "out")
    assert again.code == 2 and "was loaded wrongly on purpose" in again.err and not (tmp_path / "out").exists()


def test_mistakes_are_a_line_and_leave_nothing(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    ours, text = tmp_path / "ours", tmp_path / "text"
    text.write_text("a")

    def line(*words: object) -> str:
        done = convert(*words)
        assert done.code == 2 and not done.out and done.err.count("\n") == 1, done.err
        return done.err

    assert f"there is {', '.join(TRAPS)}, and all. Did you mean rope_pairing?" in line(folder, "--trap", "ropepairing")
    assert "2 wrong models do not fit into" in line(folder, ours, "--trap", "names", "--trap", "tying")
    assert "do not fit into" in line(folder, ours, "--trap", "all")
    assert "--trap transpose: nothing to get wrong here" in line(folder, ours, "--trap", "transpose")
    assert "--no-verify: under --trap nothing is compared" in line(folder, "--trap", "names", "--no-verify")
    assert "--text: is for --trap" in line(folder, ours, "--text", text)
    assert "--prompt: is for --trap" in line(folder, ours, "--prompt", "the")
    assert "has no tokenizer" in line(folder, "--trap", "names", "--prompt", "the")
    assert "is there already" in line(folder, tmp_path, "--trap", "names")
    assert "there is no such folder" in line(tmp_path / "nowhere", "--trap", "names")
    spoken(folder)
    assert "--prompt: " in line(folder, "--trap", "names", "--prompt", "ÿ")
    assert "--prompt: has 300 tokens; the model reads 128" in line(folder, "--trap", "names", "--prompt", "the" * 100)
    assert "a lone token" in line(folder, "--trap", "names", "--text", text)
    assert not ours.exists()
    assert convert(folder, ours, "--no-verify").code == 0
    assert "is a model of ours, and --trap is about loading published ones" in line(ours, "--trap", "names")


def test_weights_that_are_no_numbers_fail_in_a_line(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, theirs = saved(tmp_path / "theirs", "llama")
    theirs.lm_head.weight.data.fill_(float("nan"))
    theirs.save_pretrained(folder)
    done = convert(folder, "--trap", "names")
    assert done.code == 1 and "not finite" in done.err and not done.out


def test_help_names_every_trap(convert: Callable[..., Done]) -> None:
    told = " ".join(convert("--help").out.split())
    assert f"{', '.join(TRAPS)}, or all" in told and PROMPT in told


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_of_the_lab_tells_of_every_trap_and_how_to_spring_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"**{part}.**" in page for part in ("Question", "Command", "What you should see", "Why"))
    assert "anatomy-convert smollm2-135m --trap all" in page
    assert all(page.count(f"| `{name}` |") == 3 for name in TRAPS)


@pytest.mark.network
def test_the_pages_numbers_of_smollm2_are_what_the_command_prints(convert: Callable[..., Done]) -> None:
    """About 90 MB are downloaded, once."""
    done = convert("smollm2-135m", "--fetch", "--trap", "all")
    assert done.code == 0, done.err
    page = PAGE.read_text(encoding="utf-8").split("\n\n")
    (table,) = (block for block in page if block.startswith("| loaded | SmolLM2"))
    told = {cells[1].strip("` "): cells[2:5] for line in table.splitlines()[2:] for cells in [line.split("|")]}
    rows = rows_of(done.out)
    assert set(told) == set(rows)
    for name, cells in told.items():
        for cell, printed in zip(cells, rows[name], strict=False):
            assert not cell.strip() or abs(float(cell) - float(printed)) < 0.01, name
