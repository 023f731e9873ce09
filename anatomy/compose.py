"""The Hydra side: from words on a command line to the resolved config of every run that they ask for.

Hydra composes and launches; what is allowed is decided here and in config.py, before anything starts. Importing this
module registers the resolvers that conf/config.yaml needs, so a worker that imports the task finds them.
"""

import copy
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from anatomy.about import is_broken, without_about
from anatomy.axes import AXES, BASES, COUNTERPARTS, PART_AXES, SWAPPED_AXES, part_of, swapped_part
from anatomy.config import did_you_mean, known_keys
from anatomy.errors import UserError
from anatomy.files import CONF

HYDRA_VERSION_BASE = "1.3"
GROUPS = ("base", "swap", *AXES, "scale", "corpus", "train", "study")
OF_THE_COMMAND = ("output_dir", "force", "dry_run", "diagnostics", *(f"predict.{axis}" for axis in AXES))
"""Not of what is asked."""
CHOSEN = ("corpus.name", "study.name")  # set by choosing corpus= or study=


def _resolve_part(base: str, axis: str) -> str:
    return part_of(base, axis) if base in BASES else "none"  # a wrong base is told by its own name


def _resolve_swap(base: str, axis: str) -> str:
    return swapped_part(base, axis) if base in BASES else "none"


OmegaConf.register_new_resolver("part", _resolve_part, replace=True)
OmegaConf.register_new_resolver("swapped", _resolve_swap, replace=True)


@dataclass(frozen=True)
class Request:
    """One run as asked for: the words, and the config that they come to (plain containers).

    study_seeds   the seeds that the study's file names for such runs, whatever the command line says
    """

    overrides: tuple[str, ...]
    launch_overrides: tuple[str, ...]
    swap: tuple[str, ...]
    study_seeds: tuple[int, ...]
    resolved: dict[str, Any]

    @property
    def swap_words(self) -> str:
        """The swap as the manifest keeps it: axes with commas between, or none."""
        return ",".join(self.swap) or "none"

    def with_settings(self, settings: Mapping[str, Any]) -> "Request":
        """The same run with other values (dotted key -> number), in its words as in its config."""
        resolved = copy.deepcopy(self.resolved)
        for key, value in settings.items():
            *sections, last = key.split(".")
            place = resolved
            for section in sections:
                place = place[section]
            place[last] = value

        def other(words: Sequence[str]) -> list[str]:
            return [word for word in words if word.lstrip("+").partition("=")[0] not in settings]

        return replace(
            self,
            overrides=(*other(self.overrides), *(f"{key}={value}" for key, value in settings.items())),
            launch_overrides=(*other(self.launch_overrides), *(f"++{key}={value}" for key, value in settings.items())),
            resolved=resolved,
        )

    def swap_fault(self) -> str | None:
        """What is wrong with the swap, if it changes nothing."""
        base = self.resolved["base"]
        idle = [axis for axis in self.swap if part_of(base, axis) == swapped_part(base, axis)]
        if not idle:
            return None
        same = ", ".join(f"{axis}={part_of(base, axis)}" for axis in idle)
        moved = [axis for axis in AXES if part_of(base, axis) != swapped_part(base, axis)]
        return (
            f"swap={','.join(idle)}: changes nothing, {base} and its counterpart {COUNTERPARTS[base]} "
            f"both have {same}; swap can be {', '.join(moved)}"
        )


@dataclass(frozen=True)
class Asked:
    """What a command line asks for: one run or many, and Hydra's own config to launch them with."""

    requests: tuple[Request, ...]
    is_sweep: bool
    master: DictConfig


def read_command(words: Sequence[str], *, multirun: bool, config_dir: str | None = None) -> Asked:
    """Compose every run that the words ask for. Raises UserError with every fault of grammar and name, a line each.

    A study that is named makes it a sweep; where command line and study sweep the same key, the command line wins.
    """
    GlobalHydra.instance().clear()
    initialize_config_dir(str(CONF), version_base=HYDRA_VERSION_BASE, job_name="anatomy")
    overrides = _parse(words)
    _refuse_faults(overrides, Path(config_dir) if config_dir else None)
    about_hydra = [str(o.input_line) for o in overrides if o.is_hydra_override()]
    if config_dir:
        about_hydra.append(f"hydra.searchpath=[{Path(config_dir).resolve().as_uri()}]")
    settings = [o for o in overrides if not o.is_hydra_override() and not _is_no_study(o)]
    swept = [str(o.input_line) for o in settings if o.is_sweep_override()]
    is_sweep = multirun or any(o.key_or_group == "study" for o in settings)
    if swept and not is_sweep:
        raise UserError(f"{swept[0]}: several values ask for a sweep; type anatomy-train -m {' '.join(words)}")
    master = _compose([*about_hydra, *(_launchable(o) for o in settings if not o.is_sweep_override())])
    of_study = _study_sweeps(master) if is_sweep else [[]]
    _refuse_other_parts(master, of_study, settings)
    jobs: dict[frozenset[str], Sequence[str]] = {}
    seeds_of: dict[frozenset[str], set[int]] = defaultdict(set)
    for sweep in of_study:
        seeds = {seed for o in sweep if o.key_or_group == "seed" for seed in _options(o)}
        for job in BasicSweeper.split_arguments([*sweep, *settings], max_batch_size=None)[0]:
            jobs.setdefault(frozenset(job), job)
            seeds_of[frozenset(job)] |= seeds
    arms: dict[tuple[str, ...], DictConfig] = {}
    requests = (_request(about_hydra, _parse(job), arms, tuple(sorted(seeds_of[key]))) for key, job in jobs.items())
    return Asked(tuple(requests), is_sweep, master)


def _study_sweeps(master: DictConfig) -> list[list[Override]]:
    """What the study's file sweeps: the sweeper's params and, for each of its lines, those and the line's words."""
    params = master.hydra.sweeper.get("params") or {}
    common = _parse([f"{key}={value}" for key, value in params.items()])
    lines = OmegaConf.select(master, "study.sweeps") or [""]
    return [[*common, *_parse(shlex.split(line))] for line in lines]


def _refuse_other_parts(
    master: DictConfig, of_study: Sequence[Sequence[Override]], settings: Sequence[Override]
) -> None:
    """An exam is about the parts of one axis: a part on another one, that it does not sweep itself, is none of its
    concern."""
    exam = OmegaConf.select(master, "study.exam")
    if exam is None:
        return
    own = {exam} | {o.key_or_group for sweep in of_study for o in sweep}
    for override in settings:
        axes = _options(override) if override.key_or_group == "swap" else [override.key_or_group]
        if foreign := [axis for axis in axes if axis in AXES and axis not in own]:
            takes = " and ".join(f"{axis}=" for axis in AXES if axis in own)
            other = f", or type study=exam_{foreign[0]}" if foreign[0] in SWAPPED_AXES else ""
            raise UserError(
                f"{override.input_line}: does not concern study={master.study.name}, which examines {exam}; of parts "
                f"it takes {takes}{other}"
            )


def _is_no_study(override: Override) -> bool:
    return override.key_or_group == "study" and _options(override) == [None]  # Hydra cannot override a group by null


def _request(
    about_hydra: Sequence[str],
    overrides: Sequence[Override],
    arms: dict[tuple[str, ...], DictConfig],
    study_seeds: tuple[int, ...],
) -> Request:
    """Compose one run. Composing takes a tenth of a second, so the seeds of an arm share what is composed once."""
    seeds = [o.value() for o in overrides if o.key_or_group == "seed"]
    arm = tuple(_launchable(o) for o in overrides if o.key_or_group != "seed")
    if arm not in arms:
        arms[arm] = _compose([*about_hydra, *arm])
    config = copy.deepcopy(arms[arm])
    with open_dict(config):
        del config["hydra"]
        for seed in seeds:
            config.seed = seed
    swap = [option for o in overrides if o.key_or_group == "swap" for option in _options(o) if option != "none"]
    return Request(
        overrides=tuple(str(o.input_line) for o in overrides if o.key_or_group not in OF_THE_COMMAND),
        launch_overrides=tuple(_launchable(o) for o in overrides),
        swap=tuple(map(str, swap)),
        study_seeds=study_seeds,
        resolved=without_about(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))),
    )


def _compose(words: Sequence[str]) -> DictConfig:
    try:
        return compose(config_name="config", overrides=list(words), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{' '.join(words)}: {_first_line(error)}") from None


# ------------------------------------------------------------------------------------------------ faults


def _parse(words: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    parsed, faults = [], []
    for word in words:
        try:
            parsed += parser.parse_overrides([word])
        except HydraException:
            faults.append(_grammar_fault(word))
    if faults:
        raise UserError("\n".join(faults))
    return parsed


def _grammar_fault(word: str) -> str:
    key, equals, value = word.partition("=")
    if not equals:
        return f"{word}: not a setting; type key=value, without blanks around '=' or after a comma"
    if value.endswith(","):
        return f"{word}: ends in a comma; type the values without blanks between them: {key}=a,b"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"{word}: this value needs quotes, the inner ones for Hydra, the outer ones for the shell: '{key}=\"{quoted}\"'"
    )


def _refuse_faults(overrides: Sequence[Override], config_dir: Path | None) -> None:
    faults = [_fault(o, config_dir) for o in overrides if not o.is_hydra_override()]
    studies = [option for o in overrides if o.key_or_group == "study" for option in _options(o)]
    if len(studies) > 1:
        faults.append(f"study={','.join(map(str, studies))}: one study at a time")
    faults += [
        f"{o.input_line}: one value a command; type {_one_value(o)}"
        for o in overrides
        if o.is_sweep_override() and o.key_or_group in OF_THE_COMMAND
    ]
    if any(faults):
        raise UserError("\n".join(dict.fromkeys(filter(None, faults))))


def _one_value(override: Override) -> str:
    key, values = override.key_or_group, list(map(str, _options(override)))
    return f"{key}=[{','.join(values)}]" if key == "diagnostics" else f"{key}={values[0]}"


def _fault(override: Override, config_dir: Path | None) -> str | None:
    """What is wrong with the key of an override or, where the key is a group, with its options."""
    key, word = override.key_or_group, override.input_line
    if key not in GROUPS and key not in _settings():
        return f"{word}: no such setting.{did_you_mean(key, [*GROUPS, *_settings()])}"
    if override.is_delete():
        return f"{word}: {key} cannot be removed"
    if override.package is not None:
        return f"{word}: a setting has one place; type it without @{override.package}"
    if key not in GROUPS:
        return None
    allowed = _group_options(key, config_dir)
    offered = [option for option in allowed if not is_broken(option)]
    for option in _options(override):
        if option is None and key != "study":
            none = " Did you mean none?" if "none" in allowed else ""
            return f"{word}: null is no choice; {key} can be {', '.join(offered)}.{none}"
        if option is not None and option not in allowed:
            return f"{word}: {key} can be {', '.join(offered)}.{did_you_mean(str(option), offered)}"
    return None


def _options(override: Override) -> list[Any]:
    """The options that an override of a group names: one, a list of them, or the values of a sweep."""
    values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    flat = [option for value in values for option in (value if isinstance(value, list) else [value])]
    return [option.text if isinstance(option, QuotedString) else option for option in flat]


def _group_options(group: str, config_dir: Path | None) -> list[str]:
    options = set(GlobalHydra.instance().config_loader().get_group_options(group))
    if config_dir is not None:
        options |= {path.stem for path in (config_dir / group).glob("*.yaml")}
    return sorted(options)


@cache
def _settings() -> tuple[str, ...]:
    """Every key that may be set: the schema's, and the knobs of all parts, whether or not the part chosen has them."""
    from anatomy.build import knobs_of, part_classes  # imports torch, which composing alone does not need

    knobs = {f"{axis}.{knob}" for axis in PART_AXES for part in part_classes(axis).values() for knob in knobs_of(part)}
    return (*(key for key in known_keys() if key not in CHOSEN), *sorted(knobs))


def _launchable(override: Override) -> str:
    """An override as Hydra takes it: its key is known to be right, so `++` sets it, there or not."""
    plus = "" if override.key_or_group in GROUPS else "++"
    return f"{plus}{override.key_or_group}={override.get_value_element_as_str()}"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def shadowed(config_dir: str) -> list[str]:
    """The files of a user's folder that Hydra passes over, for a built-in one has the same name."""
    folder = Path(config_dir)
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))
    return sorted(file for file in files if (CONF / file).is_file())
