"""README.zh-CN.md stays in step with README.md in whatever no translation changes.

Commands, inline code, links, pictures, tables and numbers are compared section by section; the words are the
translator's. A number in digits is a number in digits in both, however it is set; one in words (three, 三个) is a word.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import options

ROOT = Path(__file__).resolve().parent.parent
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
LANGUAGES = {"English | [中文](README.zh-CN.md)", "[English](README.md) | 中文"}
OWN_SECTION = re.compile(r"^## [^\n]*`sanguo`\n.*?(?=^## )", flags=re.DOTALL | re.MULTILINE)
"""The one section that the Chinese README has for itself."""

VERDICTS = {
    **{"better": "更好", "worse": "更差", "equivalent": "等效", "inconclusive": "无定论", "unmatched": "不对等"},
    **{"supported here": "此处支持", "contradicted here": "此处相悖", "not seen here": "此处未见"},
    **{"outside this scale": "超出此规模", "done": "完成"},
}
JUDGED = {"verdict", "结论", "status", "状态"}
"""Headings of the columns in which the words of VERDICTS are verdicts; elsewhere they may be prose."""
NAMES = {"base", *options("base")}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()]+)\)")
CODE = re.compile(r"`([^`]+)`")
NUMBER = re.compile(r"(?:(?<![A-Za-z0-9])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it.

    fences  (language, lines) of each block of code
    tables  rows of cells
    blocks  the paragraphs, list items and pictures, the heading first
    """

    fences: list[tuple[str, list[str]]]
    tables: list[list[list[str]]]
    blocks: list[str]


def sections(text: str) -> list[Section]:
    """Split a README at its headings; languages' names and the Chinese README's own section are left out."""
    text = "\n".join(line for line in OWN_SECTION.sub("", text).splitlines() if line not in LANGUAGES)
    fences = [(language, lines.splitlines()) for language, lines in FENCE.findall(text)]
    found = []
    for section in re.split(r"^(?=#+ )", FENCE.sub("@fence@", text), flags=re.MULTILINE)[1:]:
        here = [fences.pop(0) for _ in range(section.count("@fence@"))]
        blocks = [block.strip() for block in re.split(r"\n\s*\n|\n(?=- )", section) if block.strip()]
        tables = [[cells(row) for row in block.splitlines()] for block in blocks if block.startswith("|")]
        found.append(Section(here, tables, [block for block in blocks if not block.startswith(("|", "@fence@"))]))
    return found


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().removeprefix("|").removesuffix("|"))]


def numbers(text: str) -> list[str]:
    """The numbers in digits, sorted, without thousands separators; code and links' addresses left out."""
    bare = CODE.sub(" ", LINK.sub(r"\2", text)).replace("，", ", ").replace("−", "-")
    return sorted(number.replace(",", "") for number in NUMBER.findall(unicodedata.normalize("NFKC", bare)))


def code(text: str) -> list[str]:
    return [" ".join(span.split()) for span in CODE.findall(text)]


def links(text: str) -> list[tuple[str, str]]:
    """The targets, sorted, each behind a "!" if it is a picture."""
    return sorted((mark, target) for mark, _, target in LINK.findall(text))


def untranslated(cell: str, heading: str, *, is_first: bool) -> tuple[object, ...]:
    """What a translation leaves of a cell: numbers, code, links, the English of verdicts, and a row's name."""
    verdicts = [word for word, chinese in VERDICTS.items() if re.search(rf"\b{word}\b|{chinese}", cell)]
    is_name = is_first and ("=" in cell or "`" in cell or cell in NAMES)
    judged = verdicts if heading in JUDGED else None
    return numbers(cell), code(cell), links(cell), judged, cell if is_name else None


def shape(section: Section) -> object:
    kinds = {"#": "heading", "!": "picture", "-": "item"}
    return [kinds.get(block[0], "paragraph") for block in section.blocks], section.blocks[0].split(" ")[0]


def commands(section: Section) -> object:
    return [(language, [line.split("#")[0].rstrip() for line in lines]) for language, lines in section.fences]


def comments_numbers(section: Section) -> object:
    return [[numbers(line.partition("#")[2]) for line in lines] for _, lines in section.fences]


def table_sizes(section: Section) -> object:
    return [[len(row) for row in table] for table in section.tables]


def table_cells(section: Section) -> object:
    return {
        (i, j, column): untranslated(cell, heading, is_first=column == 0)
        for i, table in enumerate(section.tables)
        for j, row in enumerate(table)
        for column, (heading, cell) in enumerate(zip(table[0], row, strict=False))
    }


def inline_code(section: Section) -> object:
    return Counter(code("\n".join(section.blocks)))


def links_and_pictures(section: Section) -> object:
    return [links(block) for block in section.blocks]


def text_numbers(section: Section) -> object:
    return numbers("\n".join(section.blocks))


ASPECTS: dict[str, Callable[[Section], object]] = {
    "headings, paragraphs, list items and pictures": shape,
    "commands": commands,
    "numbers in the commands' comments": comments_numbers,
    "rows and columns of tables": table_sizes,
    "names, numbers, verdicts, code and links in tables": table_cells,
    "inline code": inline_code,
    "links and pictures": links_and_pictures,
    "numbers in the text": text_numbers,
}


@pytest.mark.parametrize("aspect", ASPECTS.values(), ids=ASPECTS)
def test_both_readmes_have_the_same(aspect: Callable[[Section], object]) -> None:
    for chinese, english in zip(sections(CHINESE), sections(ENGLISH), strict=True):
        assert aspect(chinese) == aspect(english), f"{chinese.blocks[0]} / {english.blocks[0]}"


def test_each_readme_leads_to_the_other() -> None:
    assert "(README.zh-CN.md)" in ENGLISH.partition("\n## ")[0]
    assert "(README.md)" in CHINESE.partition("\n## ")[0]


def test_one_section_is_the_chinese_readmes_own() -> None:
    assert (len(OWN_SECTION.findall(ENGLISH)), len(OWN_SECTION.findall(CHINESE))) == (0, 1)


def one_change_each(text: str) -> list[str]:
    """Texts that differ from this one in a digit, a line, a verdict, a name, a link, or the sections from one on."""
    lines = text.splitlines(keepends=True)
    digits = [found.start() for found in re.finditer(r"\d", text)]
    kept = [i for i, line in enumerate(lines) if line.startswith(("| ", "- ", "![", "anatomy-", "make "))]
    words = [("| better |", "| worse |"), ("| 更好 |", "| 更差 |"), ("norm=rms ", "norm=none "), ("(docs/", "(doc/")]
    return [
        *(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :] for at in digits[::29]),
        *("".join(lines[:i] + lines[i + 1 :]) for i in kept[::3]),
        *(text.replace(*pair, 1) for pair in words if pair[0] in text),
        *(text[: found.start()] for found in re.finditer(r"^## ", text, flags=re.MULTILINE)),
    ]


@pytest.mark.parametrize("text", [ENGLISH, OWN_SECTION.sub("", CHINESE)], ids=["English", "Chinese"])
def test_a_change_in_one_readme_alone_is_noticed(text: str) -> None:
    def compared(version: str) -> list[object]:
        found = sections(version)
        return [[aspect(section) for section in found] for aspect in ASPECTS.values()]

    unchanged, changed = compared(text), one_change_each(text)
    assert len(changed) > 50
    assert not [version for version in changed if compared(version) == unchanged]


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("1,000 steps at 80 % and -0.274, three seeds", "训练 1000 步，功效 80%，差 −0.274，三个种子"),
        ("8 to 10 minutes: 3, 100", "8～10 分钟：3，100"),
        ("48 wide, p below 1e-06", "宽４８，p 小于 1e-06"),
        ("the 2017 Transformer, [6 more](a7.md), `8`", "2017 年的 Transformer，[另外 6 个](a9.md)，`8`"),
    ],
    ids=["separators", "ranges", "full width", "links and code"],
)
def test_numbers_are_the_same_however_they_are_set(english: str, chinese: str) -> None:
    assert numbers(english) == numbers(chinese) != []


@pytest.mark.parametrize(
    ("english", "chinese"), [("1,000", "10,000"), ("+0.01", "-0.01"), ("0.10", "0.1"), ("3 and 3", "3")]
)
def test_other_numbers_are_other_numbers(english: str, chinese: str) -> None:
    assert numbers(english) != numbers(chinese)
