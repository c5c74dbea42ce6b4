"""Words of shell text with the line of each: quotes, continuations, variables that are known; nothing is run.

Source: POSIX.1-2024, Shell Command Language, 2.2 (quoting), 2.3 (token recognition), 2.6.2 (parameter expansion).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-+=?]|[%#/^,:@])([^{}]*))?\}|(\w+))")
_NAMED = re.compile(r"[A-Za-z][\w.-]*(?:\[[^\]]*\])?")
_REDIRECTION = re.compile(r"[<>]+&?[ \t]*[^\s;|&()]*")
_ENDS = frozenset(";|&()\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command.

    Attributes:
        line: where it begins.
        unset: variables in it whose value is not known; they are left out of `text`.
        shown: the word for people: what is left out of `text` as it stands there; "" where nothing is.
        redirected: it holds a `<` or `>` that no quotes protect, so a shell takes what follows for a file.
        unclosed: a quote in it does not end, so it is all the rest of the text.
        conditional: its command runs only where a test before it came out so (`if`, `case`, `||`).
    """

    text: str
    line: int
    unset: tuple[str, ...] = ()
    shown: str = ""
    redirected: bool = False
    unclosed: bool = False
    conditional: bool = False

    def __str__(self) -> str:
        """Return it as people are shown it."""
        return self.shown or self.text

    def after(self, start: str) -> Word:
        """Return what follows `start` in it (the value of `--option=value`)."""
        return replace(self, text=self.text.removeprefix(start), shown=self.shown.removeprefix(start))


Command = tuple[Word, ...]


def commands(text: str, known: Mapping[str, str], first: int = 1) -> Iterator[Command]:
    """Yield the simple commands of the text, whose first line has the number `first`.

    Variables are taken from `known` and from assignments and `export` in the text itself. What is in `$(…)` is left out
    and makes its word unset; an unclosed quote ends with the text.
    """
    values = dict(known)
    lexer = _Lexer(text, values, first)
    words: list[Word] = []
    depth, alternative = 0, False
    for word in lexer.words():
        if word is not None:
            words.append(word)
            continue
        if words:
            depth = max(0, depth + _opens(words))
            _assign(words, values)
            yield tuple(replace(one, conditional=True) for one in words) if depth or alternative else tuple(words)
            alternative = False
            words = []
        alternative = alternative or lexer.alternative


def arguments(text: str, known: Mapping[str, str], first: int = 1) -> Iterator[Word]:
    """Yield the words of a text that is no command, as those of `ENV` and `FROM`: nothing ends or redirects it."""
    return (word for word in _Lexer(text, known, first, plain=True).words() if word is not None)


def _opens(words: list[Word]) -> int:
    """Return by how much a command is deeper within `if` and `case` than what follows it; `then` and `else` are."""
    first = words[0].text
    return {"if": 1, "case": 1, "fi": -1, "esac": -1}.get(first, 0)


def _assign(words: list[Word], values: dict[str, str]) -> None:
    """Take in what a command of assignments alone, or `export`, sets."""
    rest = words[1:] if words[0].text in ("export", "declare", "readonly", "local") else words
    pairs = [word.text.partition("=") for word in rest]
    if all(re.fullmatch(r"[A-Za-z_]\w*", name) and equals for name, equals, _ in pairs):
        for (name, _, value), word in zip(pairs, rest, strict=True):
            if word.unset:
                values.pop(name, None)
            else:
                values[name] = value


class _Lexer:
    """Reads characters; `words` yields a word, or None where a command ends."""

    def __init__(self, text: str, values: Mapping[str, str], first: int, *, plain: bool = False) -> None:
        self._plain = plain
        self._ends = frozenset("\n") if plain else _ENDS
        self._text = text.replace("\r\n", "\n")
        self._values = values
        self._at = 0
        self._line = first
        self.alternative = False
        self._fresh()

    def _fresh(self) -> None:
        self._parts: list[str] = []
        self._shown: list[str] = []
        self._open = self._unclosed = False
        self._start = self._line
        self._unset: list[str] = []
        self._redirected = False

    def words(self) -> Iterator[Word | None]:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if text.startswith("\\\n", self._at):
                self._at += 2
                yield from self._word()
                self._line += 1
                self._fresh()
            elif char in " \t":
                self._at += 1
                yield from self._word()
            elif char in self._ends:
                yield from self._word()
                self.alternative = text.startswith("||", self._at)
                yield None
                self._at += 2 if self.alternative else 1
                self._line += char == "\n"
                self._fresh()
            elif char == "#" and not self._open and not self._plain:
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif char in "<>" and not self._plain and not self._keeps():
                if not "".join(self._parts).isdecimal():
                    yield from self._word()
                self._redirect()
            else:
                self._take(char)
        yield from self._word()
        yield None

    def _word(self) -> Iterator[Word]:
        if self._open:
            yield Word(
                text="".join(self._parts),
                line=self._start,
                unset=tuple(self._unset),
                shown="".join(self._shown) if self._unset else "",
                redirected=self._redirected,
                unclosed=self._unclosed,
            )
        self._fresh()

    def _begin(self) -> None:
        if not self._open:
            self._open, self._start = True, self._line

    def _keeps(self) -> bool:
        """Return whether `<` or `>` here is meant for a bound: it follows a package's name, a version comes after."""
        follows = bool(_NAMED.fullmatch("".join(self._parts).partition(",")[0].rstrip("<>=!~.0123456789")))
        after = self._text[self._at + 1 : self._at + 2]
        return follows and (after == "=" or after.isdigit())

    def _redirect(self) -> None:
        """Pass over a redirection: the number before it, and the file that it names."""
        match = _REDIRECTION.match(self._text, self._at)
        self._at = match.end() if match else self._at + 1
        self._fresh()

    def _take(self, char: str) -> None:
        self._begin()
        text = self._text
        if char == "'":
            end = text.find("'", self._at + 1)
            self._unclosed |= end < 0
            end = len(text) if end < 0 else end
            self._add(text[self._at + 1 : end])
            self._at = end + 1
        elif char == '"':
            self._double()
        elif char == "\\":
            self._add(text[self._at + 1 : self._at + 2])
            self._at += 2
        elif char in "$`":
            self._dollar()
        else:
            self._redirected |= char in "<>" and not self._plain
            self._add(char)
            self._at += 1

    def _add(self, part: str) -> None:
        self._parts.append(part)
        self._shown.append(part)
        self._line += part.count("\n")

    def _leave(self, name: str, written: str) -> None:
        """Leave out what is not known."""
        self._unset.append(name)
        self._shown.append(written)

    def _double(self) -> None:
        self._at += 1
        text = self._text
        while self._at < len(text) and text[self._at] != '"':
            char = text[self._at]
            if char == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                following = text[self._at + 1]
                self._line += following == "\n"
                self._add("" if following == "\n" else following)
                self._at += 2
            elif char in "$`":
                self._dollar()
            else:
                self._add(char)
                self._at += 1
        self._unclosed |= self._at >= len(text)
        self._at += 1

    def _dollar(self) -> None:
        """Put in the value of a variable; leave out what a command would have to be run for."""
        text = self._text
        if text[self._at] == "`" or text.startswith("$(", self._at):
            opened = self._at
            self._at = text.find("`", self._at + 1) + 1 or len(text) if text[self._at] == "`" else self._closing()
            self._line += text.count("\n", opened, self._at)
            self._leave(text[opened : self._at][:40], text[opened : self._at])
            return
        match = _VARIABLE.match(text, self._at)
        if match is None:
            self._add("$")
            self._at += 1
            return
        self._at = match.end()
        name = match[1] or match[4]
        value = _expanded(self._values.get(name), match[2] or "", match[3] or "")
        if value is None:
            self._leave(name, match[0])
        else:
            self._parts.append(value)
            self._shown.append(value)

    def _closing(self) -> int:
        """Return where the `$(` here ends, its closing parenthesis included."""
        depth = 0
        for at in range(self._at + 1, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[at], 0)
            if depth == 0:
                return at + 1
        return len(self._text)


def _expanded(value: str | None, mode: str, other: str) -> str | None:
    """Return what an expansion gives, None where it is not known; a colon counts what is empty as not set."""
    there = value is not None and (value != "" or not mode.startswith(":"))
    match mode.removeprefix(":"):
        case "-" | "=":
            return value if there else other
        case "+":
            return other if there else ""
        case "" | "?" if mode != ":":
            return value
        case _:
            # A part of the value: which one is not worked out.
            return None
