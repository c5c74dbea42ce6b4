"""How pins are told to people: at most a screenful, what was not tried as plainly as what was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix.cell import VARIANTS, Axis
from matrix.failure import Failure
from matrix.pins.choice import Choice, Chosen
from matrix.pins.option import Option
from matrix.pins.output import command
from matrix.pins.policy import Policy
from matrix.pins.relaxation import Nothing, Relaxation
from matrix.pins.stack import Stack
from matrix.pins.want import Want

WIDTH = 118
_NOTES = 5


def head(stack: Stack, want: Want, policy: Policy, doubts: Sequence[str] = ()) -> list[str]:
    """Return what was read, what is wanted and by what policy, in a few lines; `doubts` are told before the notes."""
    have = [f"{axis.value} {stack.have[axis.value]}" for axis in Axis if axis.value in stack.have]
    more = len(stack.statements) - len(have)
    lines = [f"have    {', '.join(have) or 'no exact version of the stack'}; {more} more ({stack.source})"]
    lines.append(f"want    {want.words}")
    uses = f"; in use: {', '.join(policy.uses)}" if policy.uses else "; no feature named, an ordinary PPO run"
    gpu = f" on {policy.gpu}" if policy.gpu else ""
    loss = f"; at most {policy.max_slowdown:.1%} slower" if policy.max_slowdown is not None else ""
    lines.append(f"policy  proven means tried at {policy.min_tier}{gpu} or deeper{loss}{uses}")
    shown = [f"note    {line}" for line in doubts]
    shown += [f"note    {note.line}" for note in stack.notes[:_NOTES]]
    builds = [f"{axis.value}-{word}" for axis, words in VARIANTS.items() for word in words]
    shown += [f"note    {name} is a build of its own; the sets below are of the ordinary one" for name in builds if
              name in stack.have]  # fmt: skip
    if len(stack.notes) > _NOTES:
        shown.append(f"note    {len(stack.notes) - _NOTES} more notes on the input; --json has them all")
    return [*(_cut(line) for line in lines), *_wrapped(shown, 8)]


def chosen_text(item: Chosen, policy: Policy, folder: Path | None) -> list[str]:
    """Return a set worth choosing in about ten lines."""
    option = item.option
    proof = option.proof
    axes = [f"{axis.value} {option.versions[axis.value]}" for axis in Axis if axis.value in option.versions]
    lines = [f"{' = '.join(item.labels)}: {', '.join(axes)}"]
    lines.append(f"  cell      {option.cell.name}")
    if proof.tier is not None and proof.deepest is not None:
        word = "proven" if option.proven(policy) else "tried"
        deepest = proof.deepest
        aside = deepest.aside.removeprefix(", ")
        count = f", {deepest.ran} of {deepest.planned} probes" if deepest.planned > 1 else ""
        where = f" ({aside})" if aside else ""
        lines.append(f"  {word:<9} at {proof.tier}{count}, on {proof.machine}, {proof.at:%Y-%m-%d}{where}")
    if proof.partly is not None:
        lines.append(f"  in part   {proof.partly.line}: no PPO step was taken")
    untried = f"; of the features in use no probe was about {', '.join(proof.untried)}" if proof.untried else ""
    lines.append(f"  untested  {', '.join(option.untested) or 'no tier'}{untried}")
    changes = [change.line for change in option.changes]
    more = f"; {option.more_changes} other packages" if option.more_changes else ""
    lines.append(f"  changes   {', '.join(changes) or 'none of the axes'}{more}")
    lines += [f"  gives way {line}" for line in option.dropped[:4]]
    added = ", ".join(option.cell.added)
    lines += [f"  adds      {added}: asked for, or so that a known failure is avoided"] if added else []
    lines += [f"  builds    {', '.join(option.to_build)}: no wheel on the index"] if option.to_build else []
    word = "deviates" if option.overrides else "but"
    lines += [f"  {word:<9} {option.deviation}"] if option.deviation else []
    lines += _failures(option)
    if proof.degraded:
        worse = len(proof.degraded)
        word = "finding" if worse == 1 else "findings"
        lines.append(f"  degraded  {worse} {word} of features not in use, e.g. {proof.degraded[0]}")
    lines += [f"  measured  {one.line}" for one in option.measured[:3]]
    lines.append(f"  install   {command(option, folder)}")
    return [*_wrapped(lines[:-1], 12), lines[-1]]


def _failures(option: Option) -> list[str]:
    kept = option.kept
    lines = [f"  avoids    {_ids(kept.avoided)}"] if kept.avoided else []
    lines += [f"  keeps     {item.id}, as you have it now: {item.title}" for item in kept.present]
    some = f"under a condition: {_ids(kept.conditional)}; " if kept.conditional else ""
    lines.append(f"  keeps     {some}{len(kept.elsewhere)} of features not in use or of low severity")
    return lines


def _ids(failures: Sequence[Failure]) -> str:
    shown = ", ".join(item.id for item in failures[:4])
    return shown + (f" and {len(failures) - 4} more" if len(failures) > 4 else "")


def tally(choice: Choice) -> str:
    """Return how many candidates there were and what became of them, in one line."""
    line = f"{len(choice.options)} candidates, {choice.resolvable} resolve; {len(choice.chosen)} worth choosing."
    unmeasured = [item for item in choice.chosen if not item.option.measured]
    if not unmeasured:
        return line
    which = "any of them" if len(unmeasured) == len(choice.chosen) else f"{len(unmeasured)} of them"
    return f"{line}\nNo measured change of speed or memory is known of {which} against what you have."


def nothing_text(found: Nothing) -> list[str]:
    """Return why nothing qualifies and what would, for people."""
    lines = [f"nothing qualifies; the nearest is {found.about}:" if found.about else "nothing qualifies:"]
    lines += [f"  because  {line}" for line in found.chain[:8]]
    if not found.relaxations:
        return _wrapped([*lines, "no relaxation was found that resolves"], 11)
    lines = _wrapped(lines, 11)
    lines.append("what would do, each resolved just now, the best evidence first:")
    for number, item in enumerate(found.relaxations, 1):
        lines += _relaxation(number, item)
    return lines


def _relaxation(number: int, item: Relaxation) -> list[str]:
    option = item.option
    axes = [f"{axis.value} {option.versions[axis.value]}" for axis in Axis if axis.value in option.versions]
    proof = option.proof
    tried = f"tried at {proof.tier} on {proof.machine}, {proof.at:%Y-%m-%d}" if proof.tier and proof.at else "resolved"
    lines = [
        f"{number}. {item.words}",
        f"     gives   {', '.join(axes)}",
        f"     is      {tried}; untested: {', '.join(option.untested)}",
    ]
    lines += [f"     but     {line}" for line in item.against[:2]]
    lines += [f"     with    {item.flags}"] if item.flags else []
    return _wrapped(lines, 13)


def advice_text(data: Mapping[str, object]) -> list[str]:
    """Return the advice (`matrix.pins.advice`) for people: two lines a release."""
    lines: list[str] = []
    rows = data["releases"]
    for row in rows if isinstance(rows, list) else ():
        best = row["best"]
        if best is None:
            lines.append(f"verl {row['verl']}: {row['why']}")
            continue
        word = "proven" if best["proven"] else "tried"
        untested = ", ".join(best["untested"]) or "no tier"
        lines.append(
            f"verl {row['verl']}: {word} at {best['tier']}, {best['machine']}, {best['at']}; untested: {untested}"
        )
        lines.append(f"  {best['command']}")
    return [line if line.startswith("  ") else _cut(line) for line in lines]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _wrapped(lines: Sequence[str], indent: int) -> list[str]:
    """Return lines of at most `WIDTH` characters with nothing left out; what continues a line is indented."""
    import textwrap

    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
            replace_whitespace=False,
        )
    ]  # fmt: skip
