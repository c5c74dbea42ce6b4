"""The data: word problems of two to eight steps in GSM8K's format, from a seed, as verl's preprocessing writes them.

A row has the columns, the instruction and the `#### answer` of verl's `examples/data_preprocess/gsm8k.py`; lengths are
near GSM8K's. Every `<<…=…>>` in an answer is right, and no question is in both sets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TRAIN, TEST = 7_473, 1_319
"""So many rows GSM8K has."""
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_STEPS = {2: 36, 3: 29, 4: 18, 5: 9, 6: 5, 7: 2, 8: 1}
"""How often a problem takes so many steps, in percent: chosen so that the lengths of prompts are those of GSM8K."""
_NAMES = (
    "Ada", "Amir", "Ben", "Bruno", "Carla", "Chen", "Cleo", "Dan", "Daria", "Elif", "Emil", "Eve", "Farah", "Finn",
    "Grace", "Gus", "Hana", "Hugo", "Ines", "Ivan", "Jana", "Jonas", "Kai", "Kira", "Lars", "Leila", "Mara", "Mateo",
    "Nadia", "Noah", "Olga", "Omar", "Paul", "Priya", "Rosa", "Ruben", "Sara", "Tariq", "Tom", "Uma", "Viktor", "Wanda",
    "Yara", "Zoe",
)  # fmt: skip
_THINGS = (
    ("apples", "the market"), ("books", "the library sale"), ("coins", "the fair"), ("pens", "the office store"),
    ("shells", "the beach"), ("stamps", "the post office"), ("marbles", "the toy shop"), ("postcards", "the museum"),
    ("cookies", "the bakery"), ("seedlings", "the garden center"), ("tickets", "the theater"), ("bricks", "the yard"),
    ("candles", "the workshop"), ("stickers", "the corner shop"), ("oranges", "the farm"), ("beads", "the craft store"),
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def problem(rng: random.Random) -> tuple[str, str]:
    """Return a question and its answer, which ends in `#### number`."""
    (steps,) = rng.choices(list(_STEPS), weights=list(_STEPS.values()))
    who, other = rng.sample(_NAMES, 2)
    thing, place = rng.choice(_THINGS)
    has = rng.randrange(6, 96)
    opening = rng.choice(
        (
            f"{who} has {has} {thing}.",
            f"On {rng.choice(_DAYS)}, {who} goes to {place} and comes home with {has} {thing}.",
            f"{who} and {other} collect {thing} together, and {who} starts with {has} of them.",
            f"At the start of the week there are {has} {thing} in {who}'s box.",
        )
    )
    told, worked = [opening], []
    previous = ""
    for _ in range(steps - 1):
        kinds = [kind for kind in _KINDS if kind != previous]
        kind = rng.choice(kinds)
        sentence, line, has = _KINDS[kind](rng, who, other, thing, has)
        previous = kind
        told.append(sentence)
        worked.append(line)
    question, line, has = _last(rng, who, thing, has)
    return " ".join([*told, question]), "\n".join([*worked, line, f"#### {has}"])


def _sum(left: int, sign: str, right: int) -> tuple[str, int]:
    value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
    return f"{left}{sign}{right}=<<{left}{sign}{right}={value}>>{value}", value


def _gets(rng: random.Random, who: str, other: str, thing: str, has: int) -> tuple[str, str, int]:
    more = rng.randrange(3, 60)
    text, now = _sum(has, "+", more)
    sentence = rng.choice(
        (
            f"{other} gives {who} {more} more {thing}.",
            f"The next day {who} finds {more} {thing} in an old drawer and adds them.",
            f"A neighbor who is moving away brings over another {more} {thing}.",
        )
    )
    return sentence, f"With the new ones {who} has {text} {thing}.", now


def _gives(rng: random.Random, who: str, other: str, thing: str, has: int) -> tuple[str, str, int]:
    less = rng.randrange(1, max(2, has // 2))
    text, now = _sum(has, "-", less)
    sentence = rng.choice(
        (
            f"{who} gives {less} of the {thing} to {other}.",
            f"Then {less} of the {thing} turn out to be damaged and are thrown away.",
            f"{who} sells {less} of them to a friend from school.",
        )
    )
    return sentence, f"After that {who} has {text} {thing} left.", now


def _times(rng: random.Random, who: str, other: str, thing: str, has: int) -> tuple[str, str, int]:
    if has > 400:
        return _gives(rng, who, other, thing, has)
    factor = rng.randrange(2, 5)
    word = {2: "twice", 3: "three times", 4: "four times"}[factor]
    text, now = _sum(has, "*", factor)
    sentence = f"By the end of the month {who} has {word} as many {thing} as before."
    return sentence, f"{word.capitalize()} as many is {text} {thing}.", now


def _boxes(rng: random.Random, who: str, other: str, thing: str, has: int) -> tuple[str, str, int]:
    boxes, each = rng.randrange(2, 9), rng.randrange(4, 13)
    inside, added = _sum(boxes, "*", each)
    text, now = _sum(has, "+", added)
    sentence = f"{other} then delivers {boxes} boxes with {each} {thing} in each of them."
    return sentence, f"The boxes hold {inside} {thing}, so there are {text} {thing}.", now


def _share(rng: random.Random, who: str, other: str, thing: str, has: int) -> tuple[str, str, int]:
    parts = next((number for number in (4, 3, 2, 5) if has % number == 0 and has // number > 3), 0)
    if not parts:
        return _gets(rng, who, other, thing, has)
    word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[parts]
    part, gone = _sum(has, "/", parts)
    text, now = _sum(has, "-", gone)
    sentence = f"{who} keeps what is needed and donates {word} of all the {thing} to the school."
    return sentence, f"{word.capitalize()} of them is {part}, so {text} {thing} are left.", now


_Kind = Callable[[random.Random, str, str, str, int], tuple[str, str, int]]
_KINDS: dict[str, _Kind] = {"gets": _gets, "gives": _gives, "times": _times, "boxes": _boxes, "share": _share}


def _last(rng: random.Random, who: str, thing: str, has: int) -> tuple[str, str, int]:
    """Return the closing question, the line that answers it, and the answer."""
    if rng.random() < 0.5:
        price = rng.randrange(2, 10)
        text, now = _sum(has, "*", price)
        return (
            f"If each of the {thing} is worth {price} dollars, how many dollars are all of {who}'s {thing} worth?",
            f"They are worth ${text}.",
            now,
        )
    more = rng.randrange(2, 30)
    text, now = _sum(has, "+", more)
    return (
        f"How many {thing} does {who} have in the end, if {more} more arrive in the mail that evening?",
        f"In the end {who} has {text} {thing}.",
        now,
    )


def row(split: str, index: int, question: str, answer: str) -> dict[str, Any]:
    """Return a problem as verl's preprocessing of GSM8K writes it."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer.rsplit("#### ", 1)[1]},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def rows(split: str, count: int, seed: int, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Yield so many rows of a set, each with a question that is not in `seen`, and add it there."""
    rng = random.Random(f"{seed}/{split}")
    for index in range(count):
        question, answer = problem(rng)
        while question in seen:
            question, answer = problem(rng)
        seen.add(question)
        yield row(split, index, question, answer)


def write_dataset(folder: Path, train: int = TRAIN, test: int = TEST, seed: int = 0) -> tuple[Path, Path]:
    """Write `train.parquet` and `test.parquet` below `folder` and return their paths; the same seed, the same rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    written = []
    for split, count in (("train", train), ("test", test)):
        path = folder / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows(split, count, seed, seen))), path)
        written.append(path)
    return written[0], written[1]
