"""anatomy-sample as a user types it, on two tiny runs of made-up texts."""

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import write_text
from made_models import END, NUM_TOKENS, byte_level, imported
from safetensors.torch import load_file, save_file
from test_runner import job

from anatomy import __version__
from anatomy.cli import sample as cli
from anatomy.cli.common import printable
from anatomy.corpus import Vocabulary
from anatomy.runner import run
from anatomy.sample import MAX_SEED, SAMPLE_CHARS
from anatomy.sampling import DEFAULT_KNOBS
from anatomy.tokens import HALF, Tokens

COMMAND = [sys.executable, "-m", "anatomy.cli.sample"]
CTX_LEN = 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> tuple[str, str]:
    """A run with learned positions, and one with rotary ones that knows more characters."""
    folder = tmp_path_factory.mktemp("spoken")
    other = write_text(folder / "other.txt")
    other.write_text(
        other.read_text(encoding="utf-8") + '\nÄ "quoted" - line\t🙂 , = # \\ \x1b[2J\x07', encoding="utf-8"
    )
    made = [
        job(folder / "outputs", text_file, "seed=3"),
        job(folder / "outputs", other, "pos=rope", "norm=rms", "seed=3"),
    ]
    for each in made:
        assert run(each, [])["status"] == "done"
    return str(made[0].folder), str(made[1].folder)


class Done:
    """What a command wrote and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process, which spares each call the seconds of importing torch."""

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["anatomy-sample", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    yield call
    torch.set_num_threads(1)


def samples(done: Done) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert done.code == 0, done.err
    return json.loads(done.out, parse_constant=refuse)["samples"]


# ------------------------------------------------------------------------------------------------ as a user types it


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = "import sys; import anatomy.cli.sample; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == (
        "False False\n"
    )
    text = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in text for word in ("RUN...", "--prompt", "--top-k", "--stop", "--window", "--json"))
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.strip().endswith(__version__)


def test_defaults_are_those_of_a_runs_own_sample() -> None:
    defaults = {parameter.name: parameter.default for parameter in cli.command.params}
    assert (defaults["num_tokens"], defaults["temperature"]) == (SAMPLE_CHARS, DEFAULT_KNOBS.temperature)
    (seed,) = (parameter for parameter in cli.command.params if parameter.name == "seed")
    assert seed.type.max == MAX_SEED


def test_a_file_gets_the_text_and_a_line_end_byte_for_byte(runs: tuple[str, str], tmp_path: Path) -> None:
    prompt = '-🙂 "Ä quoted", \\ = #\n\t\x1b[2J'
    with (tmp_path / "out").open("wb") as file:
        words = [*COMMAND, runs[1], "--prompt", prompt, "--tokens", "0"]
        done = subprocess.run(words, stdout=file, stderr=subprocess.PIPE)
    assert (done.returncode, (tmp_path / "out").read_bytes()) == (0, prompt.encode() + b"\n")


def test_the_text_comes_as_it_is_drawn_and_interrupted_it_stays_and_its_line_ends(runs: tuple[str, str]) -> None:
    words = [*COMMAND, runs[0], "--prompt", "the norm", "--tokens", "900000"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        begun = os.read(process.stdout.fileno(), 1 << 16)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and not errors.strip()
    assert begun.startswith(b"the norm") and len(begun) < 8192  # not a whole block of a buffered pipe
    assert rest.endswith(b"\n")


def test_a_reader_that_leaves_early_gets_no_traceback(runs: tuple[str, str]) -> None:
    words = [*COMMAND, runs[0], "--tokens", "900000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(8)
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read() and process.wait(timeout=60) == 1
    process.stderr.close()


# ------------------------------------------------------------------------------------------------ on a terminal


def in_terminal(num_columns: int, *words: str) -> tuple[int, str]:
    """Run the command on a terminal of its own. Returns its exit code and everything that appeared there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, num_columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment = {**inherited, "NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # Linux tells so that the last writer is gone
            break
        if not block:
            break
        shown += block
    os.close(ours)
    return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_the_text_harmless_then_notes_and_the_speed(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    words = (runs[1], "--prompt", "the\x1b[2J\x07", "--tokens", "40", "--temperature", "3")
    code, shown = in_terminal(80, *words)
    text = say(*words).out.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert code == 0 and shown.startswith(text) and "the\\x1b[2J\\x07" in text
    note, speed = shown.removeprefix(text).strip().split("\n")
    assert note.startswith("note: the text outgrew the window of 16 characters") and speed.startswith("40 tokens, ")


def test_spaces_of_any_width_and_joined_emoji_are_shown_as_they_are_and_what_acts_is_not() -> None:
    assert (
        printable("a\u3000b\u00a0c\u2003d \U0001f469\u200d\U0001f4bb\n")
        == "a\u3000b\u00a0c\u2003d \U0001f469\u200d\U0001f4bb\n"
    )
    assert printable("\x1b[2J\u202e\u200f\x9b") == "\\x1b[2J\\u202e\\u200f\\x9b"


def test_knobs_are_named_as_they_are_typed(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    done = say(runs[0], "--temperature", "-1", "--top-p", "2", "--min-p", "3")
    assert done.code == 2 and [line.partition(":")[0] for line in done.err.splitlines()] == [
        "--temperature -1",
        "--top-p 2",
        "--min-p 3",
    ]
    assert say(runs[0], "--window", "17").err.startswith("--window 17: the table of learned positions ends at 16")
    assert say(runs[0], "--prompt", "Ω").err.startswith("--prompt: characters that the vocabulary")


def test_a_stop_that_is_never_written_and_a_run_that_is_not_done_are_told(
    runs: tuple[str, str], say: Callable[..., Done], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[1], copy)
    record = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    (copy / "result.json").write_text(json.dumps(record | {"status": "failed"}), encoding="utf-8")
    done = say(str(copy), "--tokens", "3", "--stop", "Ωe", "--json")
    assert done.err.splitlines() == [
        f"note: {str(copy)!r}: the run is not done, its status is failed",
        f"note: --stop 'Ωe': {str(copy)!r} never writes 'Ω' (U+03A9), so never stops",
    ]
    (row,) = json.loads(done.out)["samples"]
    assert (row["status"], row["stop"], row["use_cache"]) == ("failed", ["Ωe"], True)


def test_runs_stand_side_by_side_where_there_is_room(runs: tuple[str, str]) -> None:
    words = (*runs, "--prompt", "the norm", "--tokens", "20", "--num-samples", "2", "--top-k", "1")
    code, wide = in_terminal(120, *words)
    lines = wide.split("\n")
    heading = lines[0]
    assert code == 0 and heading.split() == ["sample", "norm=layer", "pos=learned", "norm=rms", "pos=rope"]
    columns = [heading.index("norm=layer"), heading.index("norm=rms")]
    assert columns[1] - columns[0] == (120 - columns[0]) // 2
    rows = [line for line in lines if line[:1] in ("0", "1")]
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(row[column:].startswith("the norm") for row in rows for column in columns)
    assert wide.count("note: the text outgrew") == 1  # the windows of both are alike
    code, narrow = in_terminal(60, *words)
    assert code == 0 and narrow.startswith("== norm=layer pos=learned, sample 0 ==\nthe norm")


def test_control_characters_do_not_act_in_columns_either(runs: tuple[str, str]) -> None:
    code, shown = in_terminal(120, runs[1], runs[1], "--prompt", "a\x1b[2J\x07", "--tokens", "0")
    assert code == 0 and shown.count("a\\x1b[2J\\x07") == 2 and "\x1b[2J" not in shown and "\x07" not in shown


# ------------------------------------------------------------------------------------------------ what comes out


def test_a_runs_own_sample_is_what_the_command_says_to_the_same_prompt(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    for folder in runs:
        recorded = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))["sample"]
        assert say(folder, "--prompt", recorded[:16], "--seed", "3").out == recorded + "\n"


def test_json_holds_every_sample_of_every_run_in_order(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    words = ("--prompt", "the", "--tokens", "12", "--num-samples", "3", "--seed", "9", "--weights", "best")
    done = say(*runs, *words, "--json", "--top-p", "0.9", "--stop", "q")
    rows = samples(done)
    assert [(row["run"], row["index"]) for row in rows] == [
        (Path(folder).name, index) for folder in runs for index in range(3)
    ]
    for row in rows:
        assert row["text"] == row["prompt"] + row["continuation"] and row["prompt"] == "the"
        assert row["num_tokens"] == len(row["continuation"]) <= 12 and row["tokens_per_s"] > 0
        assert row["kv_cache_bytes"] > 0 and row["window"] == CTX_LEN
        assert (row["seed"], row["weights"], row["top_p"], row["top_k"]) == (9, "best", 0.9, None)
    alone = samples(say(runs[1], *words[:4], *words[6:], "--json", "--top-p", "0.9", "--stop", "q"))
    assert [row["text"] for row in alone] == [rows[3]["text"]]


def test_json_of_nothing_drawn_is_strict_and_of_any_character_ascii(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    done = say(runs[1], "--prompt", "🙂\x1b", "--tokens", "0", "--json")
    (row,) = samples(done)
    assert (row["text"], row["tokens_per_s"]) == ("🙂\x1b", None) and done.out.isascii()


def test_without_a_cache_the_same_is_said_and_none_is_kept(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    for folder in runs:
        words = (folder, "--prompt", "the", "--tokens", "60", "--temperature", "1", "--json")
        (cached,), (read,) = samples(say(*words)), samples(say(*words, "--no-cache"))
        assert cached["text"] == read["text"] and cached["is_cut"]
        assert cached["kv_cache_bytes"] > read["kv_cache_bytes"] == 0


def test_several_texts_stand_under_headings_when_piped(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    words = ("--prompt", "the", "--tokens", "5", "--seed", "2")
    one, two = (say(folder, *words).out for folder in runs)
    assert say(*runs, *words).out == f"== norm=layer pos=learned ==\n{one}\n== norm=rms pos=rope ==\n{two}\n"
    many = say(runs[0], *words, "--num-samples", "2").out
    assert many.startswith(f"== sample 0 ==\n{one}\n== sample 1 ==\nthe")
    name = Path(runs[0]).name
    assert say(runs[0], runs[0], *words).out == f"== {name} ==\n{one}\n== {name} ==\n{one}\n"


def test_a_stop_string_ends_the_text_and_stays(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    whole = say(runs[0], "--prompt", "the").out
    stop = whole[20:23]
    assert (
        say(runs[0], "--prompt", "the", "--stop", stop, "--stop", "ÄÄ").out == whole[: whole.index(stop, 3) + 3] + "\n"
    )


def test_an_empty_prompt_and_no_tokens_are_an_empty_line(runs: tuple[str, str], say: Callable[..., Done]) -> None:
    assert say(runs[0], "--tokens", "0").out == "\n"
    assert len(say(runs[0], "--tokens", "7").out) == 8


def test_a_prompt_longer_than_the_window_is_printed_whole_and_noted_once(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    done = say(*runs, "--prompt", "the norm of a key. " * 30, "--tokens", "5")
    assert done.out.count("the norm of a key. " * 30) == 2
    assert done.err.count("note:") == 1 and "window of 16 characters" in done.err and "last 8 to 16" in done.err
    whole = say(runs[0], "--prompt", "the norm of a key. " * 30, "--tokens", "5").out
    seen = say(runs[0], "--prompt", ("the norm of a key. " * 30)[-16:], "--tokens", "5").out
    assert seen == whole[-22:]  # sixteen characters, five and the line end


def test_a_window_beyond_the_training_is_noted_or_where_positions_end_refused(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    done = say(runs[1], "--window", "20", "--tokens", "3")
    assert done.code == 0 and done.err.count("note:") == 1 and "training (16)" in done.err
    assert say(runs[1], "--window", str(10**12), "--tokens", "3").out == done.out
    refused = say(*runs, "--window", "17")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert Path(runs[0]).name in refused.err and "ends at 16" in refused.err


# ------------------------------------------------------------------------------------------------ careless input


@pytest.mark.parametrize(
    "words",
    [
        *(["--temperature", "0"], ["--temperature", "1e-6"], ["--temperature", "1e-40"], ["--top-k", "1"]),
        *(["--top-p", "0"], ["--top-p", "1e-9"], ["--min-p", "1"], ["--temperature", "1e300", "--top-k", "1"]),
    ],
)
def test_the_edges_of_the_knobs_are_greedy(runs: tuple[str, str], say: Callable[..., Done], words: list[str]) -> None:
    texts = {say(runs[0], "--tokens", "20", *words, "--seed", seed).out for seed in ("0", "1")}
    assert texts == {say(runs[0], "--tokens", "20", "--temperature", "0").out}


@pytest.mark.parametrize(
    "words", [["--top-k", str(10**6)], ["--top-k", str(10**30)], ["--top-p", "1"], ["--min-p", "0"]]
)
def test_filters_that_take_nothing_are_none(runs: tuple[str, str], say: Callable[..., Done], words: list[str]) -> None:
    assert say(runs[0], "--tokens", "20", *words).out == say(runs[0], "--tokens", "20").out


REFUSED = [
    *(("--temperature", value) for value in ("-1", "nan", "inf", "warm")),
    *(("--top-k", value) for value in ("0", "-1", "1.5")),
    *((flag, value) for flag in ("--top-p", "--min-p") for value in ("1.5", "-0.1", "nan")),
    *(("--tokens", value) for value in ("-1", str(10**12), "many")),
    *(("--num-samples", value) for value in ("0", "-1", str(10**9))),
    *(("--seed", value) for value in ("-1", str(2**64), str(2**200))),
    *(("--window", value) for value in ("0", "-1", "17", str(10**12))),
    *(("--stop", ""), ("--weights", "worst")),
]


@pytest.mark.parametrize(("flag", "value"), REFUSED)
def test_careless_values_are_refused_in_one_line_that_names_them(
    runs: tuple[str, str], say: Callable[..., Done], flag: str, value: str
) -> None:
    done = say(runs[0], f"{flag}={value}")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert flag.removeprefix("--").replace("-", "_") in done.err.replace("-", "_")


@pytest.mark.parametrize("flag", ["--prompt", "--stop"])
def test_bytes_that_are_not_utf_8_are_refused_in_one_line(
    runs: tuple[str, str], say: Callable[..., Done], flag: str
) -> None:
    done = say(runs[0], flag, os.fsdecode(b"a\xff"))  # as Python hands such an argument over
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and "UTF-8" in done.err


def test_unknown_characters_are_all_named_and_so_is_the_run_that_lacks_them(
    runs: tuple[str, str], say: Callable[..., Done]
) -> None:
    done = say(runs[0], "--prompt", "a Ω€")
    assert done.code == 2 and "'Ω' (U+03A9) at index 2, '€' (U+20AC) at index 3" in done.err
    done = say(runs[1], runs[0], "--prompt", "Ä")
    assert (done.code, done.out) == (2, "") and Path(runs[0]).name in done.err and "U+00C4" in done.err
    assert say(runs[1], "--prompt", "Ä", "--tokens", "1").code == 0


def test_no_run_and_what_is_none_are_refused(runs: tuple[str, str], say: Callable[..., Done], tmp_path: Path) -> None:
    for words in ((), (str(tmp_path),), (str(tmp_path / "none"),), (str(Path(runs[0]).parent),), (runs[0], "")):
        done = say(*words)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), words


def test_a_model_that_is_not_finite_says_so_and_exits_with_1(
    runs: tuple[str, str], say: Callable[..., Done], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(runs[0], broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["embed.weight"][:] = torch.nan
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    for words in ((str(broken),), (runs[1], str(broken)), (str(broken), "--temperature", "0", "--json")):
        done = say(*words, "--prompt", "the")
        assert done.code == 1 and done.err.count("\n") == 1
        assert f"{str(broken)!r}: the model's logits are not finite" in done.err
    assert say(str(broken), "--weights", "best", "--prompt", "the").code == 0


def test_a_run_whose_vocabulary_has_no_line_end_starts_an_empty_prompt_somewhere(
    say: Callable[..., Done], tmp_path: Path
) -> None:
    text = tmp_path / "one-line.txt"
    text.write_text("norm and rope " * 200, encoding="utf-8")
    made = job(tmp_path / "outputs", text)
    run(made, [])
    assert Vocabulary.load(made.folder / "vocab.json").chars[0] == " "
    behind = say(str(made.folder), "--prompt", " ").out
    assert say(str(made.folder)).out == behind[1:]


# ------------------------------------------------------------------------------------------------ imported models


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("imported") / "model"
    imported(folder, "model.ctx_len=24", tokenizer=byte_level())
    return str(folder)


def test_an_imported_model_speaks_as_many_tokens_as_asked_and_its_text_comes_whole(
    model: str, say: Callable[..., Done]
) -> None:
    words = (model, "--prompt", "the key 中", "--tokens", "40", "--temperature", "1", "--seed", "3")
    (row,) = samples(say(*words, "--json"))
    assert (row["num_tokens"], row["window"], row["status"], row["run"]) == (40, 24, None, "model")
    assert row["text"] == row["prompt"] + row["continuation"] and len(row["continuation"]) != 40
    assert row["is_cut"] and row["kv_cache_bytes"] > 0
    assert say(*words).out == row["text"] + "\n"
    note = say(*words).err
    assert note.count("note:") == 1 and "outgrew the window of 24 tokens; from then on only its last 12 to 24" in note


def test_a_stop_inside_a_token_or_across_tokens_ends_the_text_there(model: str, say: Callable[..., Done]) -> None:
    words = (model, "--prompt", "the key", "--tokens", "40", "--temperature", "1", "--json")
    whole = samples(say(*words))[0]["continuation"]
    codec = Tokens(byte_level(), NUM_TOKENS)
    for begin in range(0, len(whole) - 3, 5):
        stop = whole[begin : begin + 3]
        (row,) = samples(say(*words, "--stop", stop))
        assert row["continuation"] == whole[: whole.index(stop) + 3]
        assert row["num_tokens"] <= 40
    assert codec.unknown(whole) == [] and HALF not in say(*words[:-1], "--stop", whole[:3]).out


def test_a_token_for_an_end_is_written_as_it_is_spelled_and_stops_where_asked(
    tmp_path: Path, say: Callable[..., Done]
) -> None:
    expected = imported(tmp_path / "model", tokenizer=byte_level())
    words = (str(tmp_path / "model"), "--prompt", "the", "--temperature", "3", "--tokens", "400", "--num-samples", "9")
    assert expected.num_symbols == NUM_TOKENS
    rows = samples(say(*words, "--json"))
    assert all(row["num_tokens"] == 400 for row in rows) and any(END in row["continuation"] for row in rows)
    for row, stopped in zip(rows, samples(say(*words, "--stop", END, "--json")), strict=True):
        before, end, _ = row["continuation"].partition(END)
        assert stopped["continuation"] == before + end


def test_runs_and_imported_models_speak_below_each_other(
    runs: tuple[str, str], model: str, say: Callable[..., Done]
) -> None:
    words = ("--prompt", "the", "--tokens", "5")
    done = say(runs[0], model, *words)
    alone = [say(folder, *words).out for folder in (runs[0], model)]
    first, second = (part for part in done.out.split("== ") if part)
    assert first.startswith(Path(runs[0]).name) and second.startswith(Path(model).name)
    assert [first.partition(" ==\n")[2], second.partition(" ==\n")[2]] == [f"{alone[0]}\n", f"{alone[1]}\n"]


def test_an_empty_prompt_begins_where_the_model_says(tmp_path: Path, say: Callable[..., Done]) -> None:
    starts = {}
    for start_id in (None, 0, 5):
        folder = tmp_path / str(start_id)
        imported(folder, tokenizer=byte_level(), start_id=start_id)
        starts[start_id] = say(str(folder), "--tokens", "20", "--temperature", "0").out
    assert len(set(starts.values())) == 3
    assert "\n" + starts[None] == say(str(tmp_path / "0"), "--prompt", "\n", "--tokens", "20", "--temperature", "0").out


def test_a_model_without_a_tokenizer_says_so_in_a_line(tmp_path: Path, say: Callable[..., Done]) -> None:
    imported(tmp_path / "mute")
    done = say(str(tmp_path / "mute"), "--prompt", "the")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"'{tmp_path}/mute': came without a tokenizer (no tokenizer.json)")


def test_a_context_of_many_thousands_costs_only_what_is_written(tmp_path: Path, say: Callable[..., Done]) -> None:
    imported(tmp_path / "long", "model.ctx_len=1000000000", tokenizer=byte_level())
    (row,) = samples(say(str(tmp_path / "long"), "--prompt", "the", "--tokens", "9", "--json"))
    assert row["window"] == 10**9 and row["kv_cache_bytes"] < 10**5


def test_tokens_come_as_they_are_drawn(model: str) -> None:
    words = [*COMMAND, model, "--prompt", "the key", "--tokens", "900000"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        begun = os.read(process.stdout.fileno(), 1 << 16)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and not errors.strip()
    assert begun.startswith(b"the key") and (begun + rest).decode("utf-8").endswith("\n")
