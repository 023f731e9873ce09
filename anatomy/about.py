"""What a part is, where it comes from and what is claimed of it: read from the part's own YAML, told everywhere.

The section `about` is for readers. No run knows of it: wherever a config is composed, `without_about` takes it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from anatomy.axes import PART_AXES
from anatomy.exam_rules import RULES_IN_WORDS, rule_in_words
from anatomy.files import CONF, is_plain_name


@dataclass(frozen=True)
class Claim:
    """One sentence that the literature says of a part, and who says it."""

    text: str
    source: str


@dataclass(frozen=True)
class About:
    """What a part's YAML says of it. The parts that mend a fault of the 2017 model name it, and where mending pays.

    what     the comment at the file's top
    claims   name of the rule in the report that examines it -> claim
    """

    what: str = ""
    source: str | None = None
    fault: str | None = None
    does: str | None = None
    pays: str | None = None
    claims: Mapping[str, Claim] = field(default_factory=dict)


def about(axis: str, part: str) -> About:
    """What a part says of itself; nothing, where it is not one of the built-in ones."""
    file = CONF / axis / f"{part}.yaml"
    if not is_plain_name(part) or not file.is_file():
        return About()
    content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(file)))
    said = dict(content.get("about", {}))
    claims = {key: Claim(**claim) for key, claim in said.pop("claims", {}).items()}
    return About(top_comment(file), **said, claims=claims)


def without_about(config: Mapping[str, Any]) -> dict[str, Any]:
    """A composed config, in plain containers, as a run knows it: no part says anything of itself in it."""
    return {key: _knobs(section) if key in PART_AXES else section for key, section in config.items()}


def _knobs(section: Any) -> Any:
    if not isinstance(section, Mapping):
        return section  # whatever a user's file has put there; the schema refuses it
    return {key: value for key, value in section.items() if key != "about"}


def offered(axis: str) -> list[str]:
    """The parts that a reader may choose from, by name: all of an axis but those made for breaking."""
    return sorted(file.stem for file in (CONF / axis).glob("*.yaml") if not is_broken(file.stem))


def claims_on(axis: str, margin_nats: float) -> list[dict[str, str]]:
    """All claims of an axis's parts, with the rules that decide about them, as an exam of this margin registers them
    before it starts. A claim without a rule is for readers alone."""
    return [
        {
            "part": part,
            "claim": key,
            "text": claim.text,
            "source": claim.source,
            "rule": rule_in_words(key, margin_nats),
        }
        for part in offered(axis)
        for key, claim in about(axis, part).claims.items()
        if key in RULES_IN_WORDS
    ]


def is_broken(name: str) -> bool:
    """Whether the name, a part's or that of its class, is of a part made for breaking: it runs, but is not offered."""
    return name.startswith(("broken_", "Broken"))


def top_comment(file: Path) -> str:
    """The one-line comment at a YAML's top, empty where there is none."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "@package" not in line), "")
