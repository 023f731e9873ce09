"""What parts say of themselves: read from their YAML, told everywhere alike, and known to no run."""

import json
from pathlib import Path

import pytest
from conftest import compose, options
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from anatomy import sweep
from anatomy.about import About, about, is_broken, offered, without_about
from anatomy.axes import SWAPPED_AXES, part_of
from anatomy.build import part_faults, with_parts
from anatomy.cli.train import help_text
from anatomy.compose import HYDRA_VERSION_BASE, read_command
from anatomy.errors import UserError
from anatomy.files import CONF

PARTS = [(axis, name) for axis in SWAPPED_AXES for name in options(axis)]
NEW = [(axis, part_of("llama", axis)) for axis in SWAPPED_AXES]
BROKEN = [("placement", "broken_pre_no_final_norm"), ("pos", "broken_rope_mixed_pairs"), ("pos", "broken_rope_q_only")]
CLAIMS = {
    "rms": ("as_good_as_layer", "cheaper_than_layer"),
    "post": ("fails_deep_and_bare",),
    "pre": ("needs_no_warmup",),
    "learned": ("ends_at_its_table",),
    "rope": ("best_where_trained", "degrades_beyond"),
    "gqa": ("cache_in_proportion", "as_good_as_mha", "decodes_faster", "trains_no_faster"),
    "swiglu": ("better_at_equal_parameters", "better_at_equal_time", "costs_time"),
}


@pytest.mark.parametrize(("axis", "name"), PARTS, ids=str)
def test_every_part_says_what_it_is_and_where_it_comes_from(axis: str, name: str) -> None:
    said = about(axis, name)
    assert said.what and said.source
    mends = [said.fault, said.does, said.pays]
    assert all(mends) if (axis, name) in NEW else mends == [None] * 3
    assert tuple(said.claims) == CLAIMS.get(name, ())
    for claim in said.claims.values():
        assert claim.text.endswith(".") and ". " not in claim.text and "\n" not in claim.text and claim.source


def test_a_part_that_is_not_built_in_says_nothing() -> None:
    assert about("norm", "mine") == about("norm", "../norm/rms") == about("norm", "\0") == About()


def test_help_tells_every_claim_under_its_part() -> None:
    lines = help_text().splitlines()
    for axis, name in PARTS:
        if is_broken(name):
            continue
        start = lines.index(f"  {name:<16} {about(axis, name).what}", lines.index(f"{axis}=")) + 1
        end = next(at for at in range(start, len(lines)) if not lines[at].startswith(" " * 19))
        claims = [f"claim: {claim.text} ({claim.source})" for claim in about(axis, name).claims.values()]
        assert " ".join(" ".join(lines[start:end]).split()) == " ".join(claims)
        assert all(len(line) <= 100 for line in lines[start:end])


# ------------------------------------------------------------------------------------------------ no run knows of it


def resolved(*words: str) -> dict:
    (request,) = read_command(words, multirun=False).requests
    return request.resolved


def as_hydra_has_it(*words: str) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base=HYDRA_VERSION_BASE):
        return hydra_compose(config_name="config", overrides=list(words))


def test_no_composed_config_holds_what_parts_say() -> None:
    assert "about" in as_hydra_has_it("base=llama").norm
    assert '"about"' not in json.dumps(resolved("base=llama"))
    parts = {axis: part_of("llama", axis) for axis in SWAPPED_AXES}
    assert with_parts(compose(), parts).model_dump()["norm"] == {"name": "rms", "class": "RMSNorm", "eps": 1e-5}


def test_a_job_of_a_sweep_is_the_one_that_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    class Stopped(Exception):
        pass

    def prepare(config: object, resolved: dict) -> None:
        given.update(resolved)
        raise Stopped

    monkeypatch.setattr(sweep, "prepare", prepare)
    with pytest.raises(Stopped):
        sweep.task(as_hydra_has_it("base=llama"))
    assert given == resolved("base=llama")


def test_what_a_part_says_of_itself_does_not_rename_its_runs(tmp_path: Path) -> None:
    says = "about:\n  source: me\n  claims:\n    best:\n      text: It is the best.\n      source: me\n"
    names = []
    for folder, saying in (("silent", ""), ("telling", says), ("odd", "about: 3\n")):
        (tmp_path / folder / "norm").mkdir(parents=True)
        file = tmp_path / folder / "norm" / "mine.yaml"
        file.write_text(f"# Mine.\nname: mine\nclass: RMSNorm\neps: 0.1\n{saying}", encoding="utf-8")
        asked = read_command(["norm=mine"], multirun=False, config_dir=str(tmp_path / folder))
        (planned,) = sweep.make_plan(asked).runs
        assert planned.job is not None
        names.append(planned.job.name)
    assert len(set(names)) == 1


@pytest.mark.parametrize("word", ["norm.about=x", "+norm.about.source=x", "++pos.about.claims={}", "~norm.about"])
def test_nothing_is_said_on_the_command_line(word: str) -> None:
    with pytest.raises(UserError, match="no such setting"):
        read_command([word], multirun=False)


def test_only_parts_are_silenced() -> None:
    config = {"norm": {"name": "rms", "about": {}}, "train": {"about": 1}, "pos": None, "bias": "none"}
    assert without_about(config) == {**config, "norm": {"name": "rms"}}
    assert "about" in config["norm"]  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------ made for breaking


def test_broken_parts_lie_beside_the_healthy_ones_and_are_not_offered() -> None:
    assert [part for part in PARTS if is_broken(part[1])] == BROKEN
    assert [(axis, name) for axis in SWAPPED_AXES for name in offered(axis)] == [p for p in PARTS if p not in BROKEN]
    assert "broken" not in help_text()


@pytest.mark.parametrize(("axis", "name"), BROKEN)
def test_a_broken_part_composes_when_it_is_typed_in_full(axis: str, name: str) -> None:
    assert compose(f"{axis}={name}").parts[axis] == name


@pytest.mark.parametrize("word", ["pos=broken_rope_q", "pos=rope_q_only", "pos=null", "placement=broken_pre"])
def test_no_mistake_is_answered_with_a_broken_part(word: str) -> None:
    with pytest.raises(UserError) as caught:
        read_command([word], multirun=False)
    answer = str(caught.value).partition(": ")[2]
    assert "can be" in answer and "broken" not in answer


def test_a_class_that_is_not_there_is_answered_with_the_healthy_ones() -> None:
    config = resolved("base=llama")
    config["pos"]["class"] = "Rope"
    (fault,) = part_faults(config)
    assert fault == (
        "pos.class=Rope: not a class of this axis; it can be Learned, Sinusoidal, RoPE, RoPELinear, RoPELlama3, "
        "RoPEYaRN, NoPositions"
    )
