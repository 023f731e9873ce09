"""anatomy-explain as a user types it."""

import io
import json
import math
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from anatomy import __version__
from anatomy.about import about, offered
from anatomy.axes import SWAPPED_AXES, part_of
from anatomy.cli import explain as command_line
from anatomy.cli import explanations
from anatomy.explaining import Explanation, explain
from anatomy.subjects import subjects_of
from anatomy.tracing import trace


def run(*words: str, code: int = 0) -> str:
    command = [sys.executable, "-c", "from anatomy.cli.explain import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_one_table_sets_the_five_parts_beside_the_faults_they_mend() -> None:
    rows = run("--parts").partition("\n\n")[0].splitlines()
    headings = ("axis", "2017 part", "its fault", "LLaMA part", "what it does", "where it pays")
    starts = [rows[0].index(heading) for heading in headings]
    for axis, row in zip(SWAPPED_AXES, rows[1:], strict=True):
        new = about(axis, part_of("llama", axis))
        cells = [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        parts = part_of("vanilla", axis), part_of("llama", axis)
        assert cells == [axis, parts[0], new.fault, parts[1], new.does, new.pays]


def test_claims_and_the_other_parts_follow_and_nothing_is_cut_when_piped() -> None:
    _, claims, others = run("--parts").split("\n\n")
    for axis in SWAPPED_AXES:
        for name in offered(axis):
            said = about(axis, name)
            for claim in said.claims.values():
                assert [f"{axis}={name}", claim.text, claim.source] in [_cells(line) for line in claims.splitlines()]
            is_other = name not in (part_of("vanilla", axis), part_of("llama", axis))
            assert ([f"{axis}={name}", said.what, said.source] in map(_cells, others.splitlines())) == is_other


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_narrow_terminal_wraps_and_loses_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(width: int) -> str:
        out = io.StringIO()
        monkeypatch.setattr(
            command_line, "console", lambda: Console(file=out, width=width, color_system=None, markup=False)
        )
        command_line.show(command_line.all_parts())
        return out.getvalue()

    assert all(len(line) <= columns for line in shown(columns).splitlines())
    assert Counter("".join(shown(columns).split())) == Counter("".join(shown(10_000).split()))


def test_json_is_the_same_as_data() -> None:
    data = json.loads(run("--parts", "--json"))
    assert [(part["axis"], part["part"]) for part in data] == [(a, name) for a in SWAPPED_AXES for name in offered(a)]
    for part in data:
        said = about(part["axis"], part["part"])
        assert (part["what"], part["source"], part["fault"]) == (said.what, said.source, said.fault)
        assert part["claims"] == {key: {"text": c.text, "source": c.source} for key, c in said.claims.items()}
    bases = {
        base: {part["axis"]: part["part"] for part in data if part["base"] == base} for base in ("vanilla", "llama")
    }
    assert bases == {base: {axis: part_of(base, axis) for axis in SWAPPED_AXES} for base in bases}


def test_broken_parts_are_not_shown() -> None:
    assert "broken" not in run("--parts").lower() + run("--parts", "--json").lower()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "type: anatomy-explain --parts"),
        (["--json"], "--parts"),
        (["--part"], "--part"),
        (["--parts", "gpt2"], "--parts: tells of all parts"),
        (["lama3-8b"], "Did you mean llama3-8b?"),
        (["gpt2", "--context", "0"], "--context"),
        (["gpt2", "--tokens", "4"], "is for --trace"),
        (["gpt2", "--trace", "--tokens", "1024"], "--tokens 1024: the table of positions of gpt2 ends at 1,024"),
        (["base=llama", "norm=rmss"], "Did you mean rms?"),
    ],
)
def test_wrong_input_is_one_line_and_exits_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["anatomy-explain", *words])
    with pytest.raises(SystemExit) as exited:
        command_line.main()
    said = capsys.readouterr()
    assert exited.value.code == 2 and said.out == ""
    assert message in said.err and len(said.err.splitlines()) == 1


def test_a_field_that_is_not_supported_is_named_and_refused(tmp_path: Path) -> None:
    config = {"model_type": "llama", "rope_scaling": {"type": "longrope"}, "quantization_config": {"bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = run(str(tmp_path), code=2)
    assert "longrope" in text and "quantization_config" in text and len(text.splitlines()) == 1


def test_help_and_version_answer() -> None:
    assert "--parts" in run("--help") and __version__ in run("--version")


# ------------------------------------------------------------------------------------------------ models


@cache
def explained(*words: str) -> tuple[Explanation, ...]:
    return tuple(map(explain, subjects_of(words)))


def shown(width: int, *words: str, num_traced: int | None = None) -> str:
    """What a terminal of so many columns shows."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    all_told = explained(*words)
    if num_traced is not None:
        for told in all_told:
            explanations.show_trace(console, told, trace(told, num_traced))
    elif len(all_told) == 1:
        explanations.show_one(console, all_told[0])
    else:
        explanations.show_many(console, all_told)
    return out.getvalue()


def row(text: str, label: str, nth: int = 0) -> list[str]:
    """The cells right of a label."""
    return [_cells(line)[1:] for line in text.splitlines() if _cells(line.removeprefix("≠"))[:1] == [label]][nth]


def test_one_model_is_told_part_by_part() -> None:
    text = run("llama3-8b")
    assert row(text, "norm")[:4] == ["rms", "layer", "layer", "="]
    assert row(text, "differ in") == ["5 parts", "6 parts", "0 parts"]
    assert row(text, "attention") == ["41,943,040", "1,342,177,280", "1,342,177,280", "16.7%"]
    assert row(text, "together") == ["218,112,000", "6,979,584,000", "8,030,261,248", "100.0%"]
    assert row(text, "vocabulary's share") == ["13.1%"]
    assert row(text, "weights in bf16") == ["14.96 GiB"]
    assert row(text, "cache for a token")[0] == "128.00 KiB" and row(text, "cache at 8,192 tokens")[0] == "1.00 GiB"
    assert row(text, "rms_norm_eps") == ["1e-05", "norm", "added inside the root of RMSNorm"]
    assert row(text, "attention_bias")[:2] == ["(false)", "bias"]


def test_several_models_stand_side_by_side_and_what_differs_is_marked() -> None:
    text = run("base=gpt2 model.d_model=4096 model.n_head=32", "llama3-8b", "--context", "1000")
    block = text.partition("parameters of a block")[2]
    rows = [_cells(line) for line in block.splitlines()[1:5]]
    assert rows == [
        ["≠", "attention", "67.13 M", "41.94 M"],
        ["≠", "FFN", "134.24 M", "176.16 M"],
        ["≠", "norms", "16,384", "8,192"],
        ["≠", "together", "201.38 M", "218.11 M"],
    ]
    assert ["width", "4,096", "4,096"] in [_cells(line) for line in text.splitlines()]
    assert ["≠", "cache", "n/a", "125.00 MiB"] in [_cells(line) for line in text.splitlines()]


def test_rope_is_told_pair_by_pair_or_in_summary() -> None:
    assert "29 pairs kept, 6 pairs blended, 29 pairs divided" in shown(10_000, "llama3.1-8b")
    small = shown(10_000, "base=llama model.vocab_size=9")  # heads of 12 channels
    wavelengths = [2 * math.pi * 10_000 ** (i / 6) for i in range(6)]
    assert [row(small, str(i))[1] for i in range(6)] == [f"{wavelength:,.2f}" for wavelength in wavelengths]


def test_a_walk_shows_both_names_and_every_shape() -> None:
    text = shown(
        10_000,
        "base=llama model.d_model=4 model.n_head=2 model.n_layer=2 model.vocab_size=3 ffn.hidden=3",
        num_traced=3,
    )
    assert "block 1: the same" in text and "without the batch dimension" in text
    assert row(text, "attn.q_proj") == ["self_attn.q_proj", "all queries", "[4, 4]", "[3, 4]", "[1, 4]"]
    assert row(text, "attn") == ["self_attn", "q by head, turned", "[2, 3, 2]", "[2, 1, 2]"]
    assert row(text, "cache: k, v as large") == ["[1, 3, 2]", "[1, 4, 2]"]
    assert [row(text, str(position)) for position in range(4)] == [["0"], ["1"], ["2"], ["3"]]
    assert "Hugging Face" not in shown(10_000, "base=vanilla model.vocab_size=9", num_traced=3)


@pytest.mark.parametrize("columns", [80, 150])
@pytest.mark.parametrize(
    ("words", "num_traced"),
    [
        (("llama3-70b",), None),
        (("qwen3-0.6b",), None),
        (("base=vanilla model.vocab_size=9",), None),
        (("gpt2", "base=llama model.vocab_size=9", "llama3.1-8b", "mistral-7b", "qwen3-0.6b", "llama2-70b"), None),
        (("qwen3-0.6b",), 3),
        (("gpt2-xl",), 3),
    ],
)
def test_a_terminal_of_80_or_150_columns_shows_all(
    columns: int, words: tuple[str, ...], num_traced: int | None
) -> None:
    narrow, wide = (shown(width, *words, num_traced=num_traced) for width in (columns, 10_000))
    assert max(map(len, narrow.splitlines())) <= columns
    said = Counter("".join(narrow.split()))
    assert Counter("".join(wide.split())) - said == Counter()  # labels come once more where a table is told in pieces
    numbers = re.compile(r"\d[\d,.]*\d")
    assert set(numbers.findall(wide)) <= set(numbers.findall(narrow))  # no number is broken


def test_models_as_data(tmp_path: Path) -> None:
    gpt2, llama = json.loads(run("gpt2", "base=llama", "model.vocab_size=9", "--json", "--trace"))
    assert (gpt2["name"], gpt2["num_params"], gpt2["flops_per_token"]) == ("gpt2", 124_439_808, 854_438_400)
    assert (llama["name"], llama["distance"]["vanilla"]["num"]) == ("base=llama model.vocab_size=9", 5)
    assert llama["trace"]["stretches"][1]["steps"][1]["hf_name"] == "model.layers.0.self_attn.q_proj"


def test_control_characters_of_a_file_act_on_no_terminal(tmp_path: Path) -> None:
    config = {"model_type": "llama", "_name_or_path": "a\x1b[31mb\n", "tokenizer_class": "x" * 1000}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = run(str(tmp_path))
    assert "\x1b" not in text and "x" * 100 not in text


def test_explaining_needs_neither_torch_nor_hydra() -> None:
    script = "import sys\nfrom anatomy.cli.explain import command\ncommand.main(['--parts'], standalone_mode=False)\n"
    script += "print(sorted({'torch', 'hydra'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
