"""Checks of the rows, batch by batch: prompts, rewards, sources, answers; memory does not follow the file's size."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matrix.dataset.remark import Kind, Remark
from matrix.dataset.scorer import Scorer
from matrix.gravity import Gravity

ROLES = ("system", "user", "assistant", "tool", "developer")
GSM8K_SOURCE = "openai/gsm8k"
MOST_SOURCES = 200
LONG_FACTOR = 10


@dataclass(slots=True, unsafe_hash=True)
class Tally:
    """How many rows a remark is about, and the first: row and what it shows."""

    rows: int = 0
    first: int | None = None
    example: str = ""

    def add(self, row: int, example: object) -> None:
        """Count a row."""
        if not self.rows:
            self.first, self.example = row, _shown(example)
        self.rows += 1


@dataclass(slots=True, kw_only=True)
class RowChecks:
    """What the rows of one file say; feed it every row in order, then ask for `remarks`.

    `digests` has eight bytes a row: of the prompt's text, for duplicates and overlap.
    """

    prompt_key: str = "prompt"
    source_key: str = "data_source"
    scorers: tuple[Scorer, ...] = ()
    count_tokens: Any = None
    longest_tokens: int = 0
    row: int = 0
    digests: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    tokens: array[int] = field(default_factory=lambda: array("I"))
    sources: Counter[str] = field(default_factory=Counter)
    styles: Counter[str] = field(default_factory=Counter)
    indices: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)

    def feed(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Look at these rows."""
        for row in rows:
            self._prompt(row.get(self.prompt_key))
            source = row.get(self.source_key)
            if self.source_key in row:
                self._source(source)
            if "reward_model" in row:
                self._reward(row["reward_model"], source)
            if "extra_info" in row:
                self._extra(row["extra_info"])
            self.row += 1

    def _tally(self, name: str, example: object) -> None:
        self.tallies.setdefault(name, Tally()).add(self.row, example)

    def _prompt(self, prompt: Any) -> None:
        text = json.dumps(prompt, sort_keys=True, default=str, ensure_ascii=False)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self.digests.append(int.from_bytes(digest, "little"))
        if not isinstance(prompt, list) or not prompt:
            self._tally("prompt-empty" if prompt in (None, []) else "prompt-shape", prompt)
            self.lengths.append(0)
            return
        length, last = 0, ""
        for message in prompt:
            if not isinstance(message, dict) or "role" not in message or "content" not in message:
                self._tally("prompt-message", message)
                continue
            last = str(message["role"])
            if last not in ROLES:
                self._tally("prompt-role", message["role"])
            content = message["content"]
            words = content if isinstance(content, str) else json.dumps(content, default=str) if content else ""
            length += len(words)
            if last == "user" and not words.strip():
                self._tally("prompt-blank", message)
        if last == "assistant":
            self._tally("prompt-ends", last)
        self.lengths.append(min(length, 0xFFFFFFFF))
        if self.count_tokens is not None:
            count = self.count_tokens(prompt)
            self.tokens.append(count)
            if self.longest_tokens and count > self.longest_tokens:
                self._tally("prompt-tokens", f"{count} tokens")

    def _source(self, source: Any) -> None:
        if not isinstance(source, str) or not source:
            self._tally("source-null", source)
            return
        if source in self.sources or len(self.sources) < MOST_SOURCES:
            self.sources[source] += 1
        for scorer in self.scorers:
            if scorer.module(source) is None:
                self._tally(f"source-unknown {scorer.version}", source)

    def _reward(self, reward: Any, source: Any) -> None:
        if not isinstance(reward, dict):
            self._tally("reward-null", reward)
            return
        self.styles[str(reward.get("style"))] += 1
        truth = reward.get("ground_truth")
        if truth is None or truth in ("", [], {}):
            self._tally("truth-empty", truth)
        elif source == GSM8K_SOURCE:
            self._answer(truth)

    def _answer(self, truth: Any) -> None:
        if not isinstance(truth, str):
            self._tally("answer-type", f"{truth!r} ({type(truth).__name__})")
            return
        for scorer in self.scorers:
            if scorer.gsm8k is not None and not scorer.gsm8k.reachable(truth):
                self._tally(f"answer-unreachable {scorer.version}", truth)
        if truth.endswith((".", ",")) or (truth.count(".") > 1):
            self._tally("answer-odd", truth)

    def _extra(self, extra: Any) -> None:
        if extra is None:
            self._tally("extra-null", extra)
        elif isinstance(extra, dict) and extra.get("index") is not None:
            self.indices += 1

    def figures(self) -> dict[str, float]:
        """Return figures of the prompts: characters (and tokens where they were counted), lowest, median, highest."""
        found: dict[str, float] = {}
        for name, values in (("characters", self.lengths), ("tokens", self.tokens)):
            if values:
                ordered = sorted(values)
                found |= {f"{name}_least": ordered[0], f"{name}_median": ordered[len(ordered) // 2]}
                found[f"{name}_most"] = ordered[-1]
        return found

    def remarks(self) -> list[Remark]:
        """Return what the rows have to say."""
        found = []
        for (word, tally), versions in self._grouped().items():
            kind, gravity, what, then = _WORDS[word]
            message = what.format(example=tally.example, version=", ".join(versions))
            if word == "extra-null":
                bad = [scorer.version for scorer in self.scorers if not scorer.null_extra_info]
                if not bad:
                    continue
                message += f" (verl {', '.join(bad)})"
            found.append(
                Remark(kind=kind, gravity=gravity, message=message, rows=tally.rows, first=tally.first, then=then)
            )
        return found + self._long()

    def _grouped(self) -> dict[tuple[str, Tally], list[str]]:
        """Return what was counted, each with the releases for which it is the same."""
        grouped: dict[tuple[str, Tally], list[str]] = {}
        for name, tally in self.tallies.items():
            word, _, version = name.partition(" ")
            same = next((key for key in grouped if key[0] == word and key[1] == tally), (word, tally))
            grouped.setdefault(same, []).append(version)
        return grouped

    def _long(self) -> list[Remark]:
        if len(self.lengths) < 10:
            return []
        middle = sorted(self.lengths)[len(self.lengths) // 2]
        limit = max(LONG_FACTOR * middle, 2000)
        long = [at for at, length in enumerate(self.lengths) if length > limit]
        if not long:
            return []
        message = f"prompts of up to {max(self.lengths)} characters, the median being {middle}"
        then = "verl drops or refuses prompts longer than data.max_prompt_length tokens; --tokenizer counts them."
        return [
            Remark(kind=Kind.LENGTH, gravity=Gravity.NOTE, message=message, rows=len(long), first=long[0], then=then)
        ]


_ERROR, _WARNING = Gravity.ERROR, Gravity.WARNING
_CHAT = "verl applies the chat template to a list of {role, content}; its filter of long prompts drops other rows."
_OWN = "Correct the name, or give your own with custom_reward_function.path."
_WORDS: Mapping[str, tuple[Kind, Gravity, str, str]] = {
    "prompt-empty": (Kind.PROMPT, _ERROR, "the prompt is empty: {example}", _CHAT),
    "prompt-shape": (Kind.PROMPT, _ERROR, "the prompt is no list of messages: {example}", _CHAT),
    "prompt-message": (Kind.PROMPT, _ERROR, "a message has no role or no content: {example}", _CHAT),
    "prompt-role": (
        Kind.PROMPT, _WARNING, "the role `{example}` is none that chat templates know", f"Roles: {', '.join(ROLES)}.",
    ),
    "prompt-blank": (Kind.PROMPT, _ERROR, "a user message is blank: {example}", ""),
    "prompt-ends": (
        Kind.PROMPT, _WARNING, "the prompt ends with the assistant's own turn",
        "Leave the answer out of the prompt; the model would be asked to speak after itself.",
    ),
    "prompt-tokens": (
        Kind.LENGTH, _WARNING, "longer than max_prompt_length: {example}",
        "verl leaves such rows out (data.filter_overlong_prompts) or stops (data.truncation=error).",
    ),
    "source-null": (Kind.SOURCE, _ERROR, "data_source is empty: {example}", _OWN),
    "source-unknown": (
        Kind.SOURCE, _ERROR, "verl {version} cannot score data_source `{example}`: NotImplementedError", _OWN,
    ),
    "reward-null": (Kind.REWARD, _ERROR, "reward_model is no mapping: {example}", "verl reads its ground_truth."),
    "truth-empty": (Kind.REWARD, _ERROR, "the ground truth is empty: {example}", "Such a row can never be right."),
    "answer-type": (
        Kind.ANSWER, _ERROR, "the ground truth of GSM8K is no text: {example}; verl compares text, so it never equals",
        "Write it as a string.",
    ),
    "answer-unreachable": (
        Kind.ANSWER, _ERROR, "no response can equal the ground truth `{example}` by GSM8K's rule of verl {version}",
        "Write the number alone, without separators: 1000, -5, 3.5.",
    ),
    "answer-odd": (
        Kind.ANSWER, _WARNING, "the ground truth `{example}` is right only for a response spelled as oddly", "",
    ),
    "extra-null": (
        Kind.EXTRA, _ERROR, "extra_info is null, which raises AttributeError on reading", "Write an empty mapping.",
    ),
}  # fmt: skip


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
