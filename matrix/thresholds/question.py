"""The question: which knob, of which workload, under which cap; asked one by one or from a list, worthiest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matrix.datafile import Table, read
from matrix.errors import DataError, UsageError
from matrix.memory.shape import shape_named
from matrix.memory.workload import Value, Workload
from matrix.thresholds.cap import Cap, cap_named
from matrix.thresholds.knobs import Script, Searched, knob_named
from matrix.thresholds.search import REPEATS

QUESTIONS = Path(__file__).with_name("questions.toml")
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")

_SIZES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
)
"""Sizes that verl wants to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question.

    Attributes:
        knob: what is searched.
        workload: what is run, the knob's own value aside.
        cap: the card that is asked about, None for the card as it is.
        beside: bytes that somebody else holds on the card meanwhile (a sleeping rollout).
        repeats: how often each end of the answer is repeated in fresh processes.
        why: what the answer is good for.
    """

    knob: Searched
    workload: Workload
    cap: Cap | None = None
    beside: int = 0
    repeats: int = REPEATS
    why: str = ""

    def __post_init__(self) -> None:
        """Refuse a knob of a critic that is not there, and less than nothing held beside it."""
        if self.beside < 0:
            raise UsageError("What is held beside cannot be less than nothing.", then="Give --beside-mib 0 or more.")
        if self.knob.of_critic and self.workload.critic is None:
            raise UsageError(f"{self.knob.key} is searched where there is a critic; this workload has none.")

    @property
    def settled(self) -> Workload:
        """Return the workload with what the knob needs to count, and one row where a size is left open."""
        made = self.workload.with_settings(dict(self.knob.implied))
        return made.with_settings({key: 1 for key in _SIZES if key in made.settings and made.settings[key] is None})

    @property
    def values(self) -> tuple[float, ...]:
        """Return the values to search among."""
        return self.knob.values(self.settled)

    @property
    def workload_name(self) -> str:
        """Return the model, the lengths, and every setting that is not verl's default by the end of its key."""
        work = self.workload
        plain = Workload(shape=work.shape).settings
        skipped = {*_LENGTHS, *self.knob.implied, self.knob.key}
        differs = [
            f"{_short(key)}={_word(value)}"
            for key, value in sorted(work.settings.items())
            if key not in skipped and plain.get(key) != value
        ]
        if work.critic is None:
            differs = [item for item in differs if not item.startswith("critic.")] + ["no-critic"]
        return ",".join([f"{work.shape.name}:{work.prompt_length}+{work.response_length}", *differs])

    @property
    def name(self) -> str:
        """Return the question's name, which is its probe's: `threshold/WORKLOAD/KNOB/CAP`."""
        cap = self.cap.name if self.cap else "whole"
        cap += f"-{self.beside // 2**20}MiB" if self.beside else ""
        cap += "-step" if self.knob.script is Script.STEP else ""
        return f"threshold/{self.workload_name}/{self.knob.key}/{cap}"


def _short(key: str) -> str:
    """Return a key without what it shares with others: `actor.param_offload` for the actor's."""
    owner = "critic" if key.startswith("critic.") else "rollout" if ".rollout." in key else "actor"
    last = key.rpartition(".")[2]
    return last if key.startswith(("data.", "trainer.")) else f"{owner}.{last}"


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def asked(
    model: str,
    knob: str,
    cap: str | None = None,
    settings: Mapping[str, Value] | None = None,
    *,
    beside: int = 0,
    repeats: int = REPEATS,
    why: str = "",
) -> Asked:
    """Return the question of these words; raises UsageError where one of them names nothing."""
    workload = Workload(shape=shape_named(model)).with_settings(settings or {}).launchable()
    return Asked(
        knob=knob_named(knob), workload=workload, cap=cap_named(cap) if cap else None,
        beside=beside, repeats=repeats, why=why,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A question of a list, with the id by which it is chosen."""

    id: str
    asked: Asked
    settings: Mapping[str, Value] = field(default_factory=dict)


def load_questions(path: Path = QUESTIONS, repeats: int = REPEATS) -> tuple[Listed, ...]:
    """Return the questions of a list, the worthiest first; raises DataError and NewerSchemaError."""
    whole = read(path)
    found: dict[str, Listed] = {}
    for table in whole.tables("question"):
        item = _listed(table, repeats)
        if item.id in found:
            raise table.error("id", f"`{item.id}` is there twice")
        found[item.id] = item
    whole.end()
    return tuple(found.values())


def _listed(table: Table, repeats: int) -> Listed:
    inner = table.table("settings") if table.has("settings") else None
    settings = dict(inner.values) if inner is not None else {}
    model, knob, why = table.text("model"), table.text("knob"), table.text("why")
    cap = table.text("cap", "")
    beside = table.integer("beside_mib", 0) * 2**20
    name = table.text("id")
    table.end()
    try:
        made = asked(model, knob, cap or None, _plain(settings), beside=beside, repeats=repeats, why=why)
        _ = made.values
    except UsageError as error:
        raise table.error("knob", str(error)) from error
    return Listed(id=name, asked=made, settings=_plain(settings))


def _plain(settings: Mapping[str, object]) -> dict[str, Value]:
    return {key: value for key, value in settings.items() if value is None or isinstance(value, str | int | float)}


def parse_setting(word: str) -> tuple[str, Value]:
    """Return key and value of a word like `actor_rollout_ref.actor.fsdp_config.param_offload=true`."""
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise UsageError(f"`{word}` is not written KEY=VALUE.")
    return key.lstrip("+"), parse_value(text)


def parse_value(text: str) -> Value:
    """Return the value that hydra would make of a plain word."""
    words: dict[str, Value] = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def chosen(listed: Sequence[Listed], words: Sequence[str]) -> list[Listed]:
    """Return the questions whose ids the words name, all without words; raises UsageError for one that is not there."""
    unknown = [word for word in words if word not in {item.id for item in listed}]
    if unknown:
        raise UsageError(f"There is no question `{unknown[0]}`.", then=f"Questions: {', '.join(i.id for i in listed)}.")
    return [item for item in listed if not words or item.id in words]


__all__ = ["QUESTIONS", "Asked", "DataError", "Listed", "asked", "chosen", "load_questions", "parse_setting"]
