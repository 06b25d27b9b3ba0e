"""Faults in Lua, by rule. Every change leaves a text that Lua can read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.mutation.mutant import Change

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "=="}
SWAPPED = {"and": "or", "or": "and", "true": "false", "false": "true", "min": "max", "max": "min", "+": "-", "-": "+"}
OPENING, CLOSING = "([{", ")]}"
TOKEN = re.compile(
    r"(?P<comment>--\[\[.*?\]\]|--[^\n]*)|(?P<string>'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|\[\[.*?\]\])"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\.\.\.|\.\.|[=~<>]=|[-+*/%^#<>=(){}\[\];:,.])|(?P<space>\s+)",
    re.DOTALL,
)
WORD = re.compile(r"'[a-z_]+'")
BLOCK = {"then", "do", "else", "repeat", ";"}  # a statement may follow, as it may the end of another one
ALL_FROM = re.compile(r"unpack\(ARGV, .*?(?P<last>\d+|- 1)\)$", re.MULTILINE)  # arguments that are named, up to the last
UNFINISHED = {"and", "or", "not", "return", "local", "function", "in", "if", "elseif", "while", "until", "for", *BLOCK}


@dataclass(frozen=True)
class Token:
    """A word of Lua: `kind` is comment, string, number, name or sign; from `start` to `end` of the text."""

    kind: str
    text: str
    start: int
    end: int
    first: bool  # of its line


def tokens(text: str) -> list[Token]:
    """All but comments and space.

    Raises:
        ValueError: there is something that this does not know.
    """
    found: list[Token] = []
    at, fresh = 0, True
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no word of Lua: {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        if kind not in ("comment", "space"):
            found.append(Token(kind, match[0], match.start(), match.end(), fresh))
            fresh = False
        fresh = fresh or "\n" in match[0]
        at = match.end()
    return found


def changes(text: str) -> Iterator[Change]:
    """Every fault that the rules make in that script."""
    words = tokens(text)
    answers = sorted({word.text for before, word in pairwise(words) if _answers(before, word)})
    lasts = {found.start("last") for found in ALL_FROM.finditer(text)}
    for number, word in enumerate(words):
        for change in _of_word(word, words[number - 1] if number else None, answers):
            if change.start not in lasts or change.rule == "one less":  # more of them than have names change nothing
                yield change
        if word.text in ("if", "elseif"):
            yield from _negated(text, words, number)
        elif word.first and _begins(words, number):
            yield from _dropped(words, number)


def _of_word(word: Token, before: Token | None, answers: Sequence[str]) -> Iterator[Change]:
    old = word.text
    if word.kind == "sign" and old in COMPARISONS:
        yield Change(f"{old} to {COMPARISONS[old]}", word.start, word.end, COMPARISONS[old])
    elif old in SWAPPED and (old not in ("+", "-") or (before and _ends(before))):
        yield Change(f"{old} to {SWAPPED[old]}", word.start, word.end, SWAPPED[old])
    elif word.kind == "number" and "." not in old:
        yield Change("one more", word.start, word.end, str(int(old) + 1))
        if int(old) > 9:  # of small ones, which are mostly places in a list, one fault says enough
            yield Change("one less", word.start, word.end, str(int(old) - 1))
    elif before is not None and _answers(before, word):
        other = answers[(answers.index(old) + 1) % len(answers)] if len(answers) > 1 else "'other'"
        yield Change(f"{old[1:-1]} to {other[1:-1]}", word.start, word.end, other)


def _answers(before: Token, word: Token) -> bool:
    """Whether it is a word that a script answers or tells with."""
    return bool(WORD.fullmatch(word.text)) and before.text in ("return", "=", "and", "or")


def _ends(word: Token) -> bool:
    """Whether an expression may end with it."""
    return word.kind in ("number", "string") or word.text in (")", "]", "}") or (word.kind == "name" and word.text not in UNFINISHED)


def _negated(text: str, words: Sequence[Token], number: int) -> Iterator[Change]:
    """`if a then` -> `if not (a) then`; not where one comparison is all, which another rule turns round."""
    end = next(at for at in range(number, len(words)) if words[at].text == "then")
    inside = words[number + 1 : end]
    signs = [word.text for word in inside if word.text in ("and", "or", "==", "~=")]
    if signs not in (["=="], ["~="]):
        start, stop = inside[0].start, inside[-1].end
        yield Change("negated", start, stop, f"not ({text[start:stop]})")


def _begins(words: Sequence[Token], number: int) -> bool:
    """Whether a statement starts with the first word of that line, so that the previous one is complete."""
    depth = sum((word.text in OPENING) - (word.text in CLOSING) for word in words[:number])
    if words[number].kind != "name" or depth:
        return False
    return not number or _ends(words[number - 1]) or words[number - 1].text in BLOCK


def _dropped(words: Sequence[Token], number: int) -> Iterator[Change]:
    """`a.b(…)` without what it does, if that is the whole statement. `redis.call` is named by its command."""
    at = number + 1
    while at + 1 < len(words) and words[at].text == ".":
        at += 2
    if at >= len(words) or words[at].text != "(":
        return
    name = "".join(word.text for word in words[number:at])
    if name in ("redis.call", "redis.pcall", "gather", "write"):
        name += f" {words[at + 1].text[1:-1]}"
    depth = 0
    for last in range(at, len(words)):
        depth += (words[last].text in OPENING) - (words[last].text in CLOSING)
        if not depth:
            break
    after = words[last + 1] if last + 1 < len(words) else None
    if after is None or after.first or after.text in ("end", "else"):
        yield Change(f"without {name}", words[number].start, words[last].end, "")
