"""From words to configs: bases, swaps, studies, and every mistake answered in one line that says what to type."""

import itertools
import math

import pytest
from conftest import compose, options

from anatomy.axes import AXES, BASES, COUNTERPARTS, LATER_AXES, SWAPPED_AXES, VALUE_AXES, differences, swapped_part
from anatomy.compose import GROUPS, Asked, read_command
from anatomy.config import Config, known_keys, parse_config
from anatomy.errors import UserError
from anatomy.sweep import make_plan


def asked(*words: str, multirun: bool = False) -> Asked:
    return read_command(words, multirun=multirun)


def names(group: str) -> list[str]:
    return options(group)


@pytest.mark.parametrize("base", BASES)
def test_a_base_uses_the_parts_of_the_table(base: str) -> None:
    assert compose(f"base={base}").parts == BASES[base]


@pytest.mark.parametrize("axis", AXES)
def test_every_option_of_an_axis_composes_and_is_known_to_the_axes(axis: str) -> None:
    assert {BASES[base][axis] for base in BASES} <= set(names(axis))
    if axis in VALUE_AXES:
        assert set(names(axis)) == set(VALUE_AXES[axis])
    for name in names(axis):
        assert compose(f"{axis}={name}").parts[axis] == name


def test_the_config_groups_are_the_bases_and_the_axes() -> None:
    assert set(names("base")) == set(BASES) == set(COUNTERPARTS)
    assert set(names("swap")) == {"none", *AXES} - {"init"}
    assert set(AXES) == {*SWAPPED_AXES, *LATER_AXES, *VALUE_AXES}
    assert set(GROUPS) >= {"base", "swap", *AXES} and set(AXES) <= set(known_keys())


@pytest.mark.parametrize(
    ("one", "other", "axes"),
    [
        ("llama", "vanilla", ("norm", "placement", "pos", "attn", "ffn")),
        ("llama", "gpt2", ("norm", "pos", "attn", "ffn", "bias", "tying")),
    ],
)
def test_bases_differ_in_the_axes_of_the_story(one: str, other: str, axes: tuple[str, ...]) -> None:
    assert differences(BASES[one], BASES[other]) == axes


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("axis", SWAPPED_AXES)
def test_a_swap_moves_one_axis_to_the_counterpart(base: str, axis: str) -> None:
    parts = compose(f"base={base}", f"swap={axis}").parts
    assert parts == BASES[base] | {axis: swapped_part(base, axis)}


def test_several_swaps_at_once_and_all_five_make_the_counterpart() -> None:
    assert differences(compose("swap=[norm,pos]").parts, BASES["vanilla"]) == ("norm", "pos")
    assert compose("swap=[norm,placement,pos,attn,ffn]").parts == BASES["llama"]


def test_a_part_that_is_typed_wins_over_a_swap() -> None:
    assert compose("base=llama", "swap=norm", "norm=rms").parts == BASES["llama"]


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm=rsm"], r"norm=rsm: norm can be layer, layer_nobias, none, rms. Did you mean rms\?"),
        (["norm=null"], r"norm=null: null is no choice; .*Did you mean none\?"),
        (["normm=rms"], r"normm=rms: no such setting. Did you mean norm\?"),
        (["train.stepps=3"], r"Did you mean train.steps\?"),
        (["+train.stepps=3"], r"Did you mean train.steps\?"),
        (["++norm.epss=1"], r"Did you mean norm.eps\?"),
        (["+normm.eps=1"], r"Did you mean norm.eps\?"),
        (["~norm.eps"], "norm.eps cannot be removed"),
        (["~norm"], "norm cannot be removed"),
        (["~nrom"], r"Did you mean norm\?"),
        (["stepps=3"], r"Did you mean train.steps\?"),
        (["seed=0,1"], "type anatomy-train -m seed=0,1"),
        (["study=swaps,walk"], "one study at a time"),
        (["study=swapz"], r"Did you mean swaps\?"),
        (["corpus.path=語料.txt"], """'corpus.path="語料.txt"'"""),
        (["corpus.path=a=b.txt"], """'corpus.path="a=b.txt"'"""),
        (["norm=rms,"], "ends in a comma"),
        (["layer"], "not a setting; type key=value"),
        (["norm@pos=rms"], "type it without @pos"),
        (["corpus.name=kjv"], "no such setting"),
    ],
)
def test_a_typing_mistake_is_one_line_that_says_what_to_type(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        asked(*words)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.lr=abc", r'train.lr="abc": should be a valid number'),
        ("train.lr=true", "train.lr=true: should be a valid number"),
        ("train.lr=nan", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("train.lr=0", "greater than 0"),
        ("model.n_layer=4.7", "whole number"),
        ("model.n_layer=0", "greater than or equal to 1"),
        ("train.steps=1e3", "whole number"),
        ("seed=null", "seed=null: should be a whole number"),
        ("seed=-1", "greater than or equal to 0"),
        ("train.betas=[0.9]", "train.betas"),
        ("train.schedule=linear", "'cosine' or 'constant'"),
        ("norm.eps=true", "norm.eps=true: should be a valid number"),
        ("norm.eps=null", "norm.eps=null"),
        ("attn.n_kv_head=2", "attn=mha: no knob 'n_kv_head'; it takes none"),
        ("norm.class=Linear", "no such setting"),
        ("eval.lengths=[0]", "greater than or equal to 1"),
    ],
)
def test_a_wrong_value_stops_everything_before_it_starts(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(asked(word))
    with pytest.raises(UserError, match=message):
        make_plan(asked(word, "ffn=gelu,relu", multirun=True))


def test_all_faults_come_at_once() -> None:
    with pytest.raises(UserError) as caught:
        make_plan(asked("train.lr=abc", "norm.eps=true", "seed=null"))
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(UserError) as caught:
        asked("train.lrr=1", "norm=rsm", "pos=roper")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.n_head=5"], "model.n_head=5 does not divide model.d_model=48"),
        (["pos=rope", "model.n_head=16"], "must be even, got 3"),
        (["pos=sinusoidal", "model.d_model=45", "model.n_head=5"], "even model width"),
        (["attn=gqa", "attn.n_kv_head=3"], "it can be 1, 2, 4"),
        (["attn=gqa", "model.n_head=1"], "leaves nothing to share"),
        (["model.vocab_size=10"], "the text has 65 distinct characters"),
        (["swap=bias"], "swap=bias: changes nothing.*norm, placement, pos, attn, ffn"),
        (["base=gpt2", "swap=placement"], "changes nothing"),
        (["corpus=files"], "corpus.path"),
        (["corpus=files", "corpus.path=/no/such/file"], "no such file"),
        (["model.ctx_len=5000"], "type: model.ctx_len"),
        (["sample.prompt='Ω'"], r"U\+03A9"),
        (["ffn.hidden=0"], "ffn.hidden"),
        (["norm.eps=-1"], "norm.eps"),
    ],
)
def test_a_run_that_cannot_be_is_refused_where_it_is_the_only_one(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(asked(*words))


def test_in_a_sweep_a_run_that_cannot_be_is_refused_alone() -> None:
    plan = make_plan(asked("model.n_head=3,5,6", multirun=True))
    assert [planned.job is None for planned in plan.runs] == [False, True, False]
    assert "does not divide" in str(plan.runs[1].error)
    assert str(plan).startswith("3 runs: 2 to do, 1 refused, about")


# ------------------------------------------------------------------------------------------------ sweeps


@pytest.mark.parametrize(
    ("words", "num_runs", "num_different"),
    [
        (["study=swaps"], 36, 36),
        (["study=swaps", "seed=5", "base=llama"], 6, 6),
        (["study=walk"], 18, 18),
        (["study=walk_gpt2"], 21, 21),
        (["study=factorial", "seed=0"], 32, 32),
        (["study=half_factorial", "seed=0"], 17, 17),
        (["study=noise_floor"], 40, 40),
        (["study=exam_norm"], 36, 36),
        (["study=exam_placement"], 76, 76),
        (["study=exam_placement", "seed=7,8"], 96, 96),  # both sweeps on the same seeds: the decisive cells once
        (["study=exam_pos", "base=llama"], 15, 15),
        (["study=walk", "base=vanilla,gpt2", "swap=none,norm"], 12, 12),
    ],
)
def test_a_study_is_the_product_of_what_it_sweeps(words: list[str], num_runs: int, num_different: int) -> None:
    plan = make_plan(asked(*words))
    assert len(plan.runs) == num_runs
    assert len({planned.job.name for planned in plan.runs if planned.job}) == num_different


def test_the_walk_of_gpt2_ends_in_llama() -> None:
    last = asked("study=walk_gpt2", "seed=0").requests[-1]
    config, _ = parse_config(last.resolved)
    assert config is not None and config.parts == BASES["llama"]


def changed_axes(study: str) -> list[frozenset[str]]:
    """For each run of a study at one seed, the axes on which its parts differ from its base's."""
    configs = (parse_config(request.resolved)[0] for request in asked(f"study={study}", "seed=0").requests)
    return [frozenset(differences(config.parts, BASES[config.base])) for config in configs if config]


def test_the_factorial_is_every_subset_of_the_five_parts() -> None:
    subsets = {frozenset(axis for bit, axis in enumerate(SWAPPED_AXES) if mask >> bit & 1) for mask in range(2**5)}
    assert len(changed_axes("factorial")) == 32 and set(changed_axes("factorial")) == subsets


def test_the_half_factorial_is_where_ffn_is_the_product_of_the_others_and_the_base() -> None:
    found = changed_axes("half_factorial")
    signs = [[1 if axis in axes else -1 for axis in SWAPPED_AXES] for axes in found]
    others = [axes for axes, (*rest, ffn) in zip(found, signs, strict=True) if math.prod(rest) != ffn]
    assert others == [frozenset()]
    assert len(set(found)) == len(found) == 17


def test_the_noise_floor_is_each_base_and_three_null_arms_with_another_start_or_order() -> None:
    configs = [parse_config(request.resolved)[0] for request in asked("study=noise_floor").requests]
    salts = {(c.base, c.init_salt, c.order_salt, c.seed) for c in configs if c and c.parts == BASES[c.base]}
    assert salts == set(itertools.product(("vanilla", "llama"), (0, 1), (0, 1), range(5)))


def test_seed_article_is_both_ends_at_the_article_scale() -> None:
    configs = [parse_config(request.resolved)[0] for request in asked("study=seed_article").requests]
    assert [(c.base, c.seed) for c in configs if c] == [("vanilla", 42), ("vanilla", 7), ("llama", 42), ("llama", 7)]
    for config in filter(None, configs):
        assert (config.model.d_model, config.model.n_layer, config.train.steps, config.train.lr) == (128, 4, 2000, 3e-4)
        assert (config.corpus.name, config.corpus.split, config.corpus.test_fraction) == ("statutes", "tail", 0)


def test_the_scales_are_those_of_the_design() -> None:
    def numbers(config: Config) -> tuple[object, ...]:
        model, train = config.model, config.train
        return (model.d_model, model.n_layer, model.n_head, model.ctx_len, train.batch_size, train.steps, train.lr)

    quick, article = compose(), compose("scale=article")
    assert numbers(quick) == (48, 3, 4, 64, 16, 1000, 4e-3)
    assert numbers(article) == (128, 4, 4, 128, 32, 2000, 3e-4)
    assert (quick.train.schedule, article.train.schedule) == ("cosine", "constant")
    for config in (quick, article):
        train = config.train
        assert (train.warmup_steps, train.betas, train.weight_decay, train.grad_clip) == (100, (0.9, 0.95), 0.1, 1.0)
        assert (train.eval_every, train.min_lr_ratio, train.threads, train.device) == (100, 0.1, 1, "auto")


def test_a_study_plans_its_files_seeds_whatever_the_command_narrows() -> None:
    asked = read_command(["study=walk", "seed=0,7", "swap=none"], multirun=False)
    assert {each.study_seeds for each in asked.requests} == {(0, 1, 2)}
    assert {each.resolved["seed"] for each in asked.requests} == {0, 7}
    assert {each.study_seeds for each in read_command(["seed=0,1"], multirun=True).requests} == {()}


def test_a_studys_sweeps_are_products_of_their_own() -> None:
    six, three = [0, 1, 2, 3, 4, 5], [0, 1, 2]
    seeds = {"layer": six, "rms": six, "layer_nobias": three, "none": three}
    assert _seeds_by_norm(asked("study=exam_norm", "base=llama")) == seeds
    of_file = {
        each.resolved["norm"]["name"]: list(each.study_seeds) for each in asked("study=exam_norm", "seed=9").requests
    }
    assert of_file == seeds


def _seeds_by_norm(given: Asked) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for request in given.requests:
        found.setdefault(request.resolved["norm"]["name"], []).append(request.resolved["seed"])
    return found


def test_the_command_line_wins_over_every_sweep_of_a_study() -> None:
    assert _seeds_by_norm(asked("study=exam_norm", "base=llama", "norm=rms", "seed=9")) == {"rms": [9]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study=exam_norm", "ffn=swiglu"],
         "ffn=swiglu: does not concern study=exam_norm, which examines norm; of parts it takes norm=, or type "
         "study=exam_ffn"),
        (["study=exam_pos", "swap=[pos,attn]"], "which examines pos"),
        (["study=exam_placement", "tying=tied"], r"takes placement= and init=$"),
    ],
)  # fmt: skip
def test_an_exam_refuses_a_part_that_it_does_not_concern(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        asked(*words)


@pytest.mark.parametrize("words", [["norm=rms,none"], ["base=gpt2"], ["swap=norm"], ["train.steps=5"]])
def test_an_exam_takes_its_own_parts_and_whatever_is_no_part(words: list[str]) -> None:
    assert asked("study=exam_norm", *words).requests


def test_every_exam_is_named_after_its_axis() -> None:
    exams = [name for name in names("study") if name.startswith("exam_")]
    axes = {name: parse_config(asked(f"study={name}", "seed=0").requests[0].resolved)[0] for name in exams}
    assert {name: config.study.exam for name, config in axes.items() if config and config.study} == {
        f"exam_{axis}": axis for axis in SWAPPED_AXES
    }
