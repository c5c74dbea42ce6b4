"""The section of the report on benches, as plain JSON: samples, intervals, verdicts, agreement, promises of guides.

Pairings stand under the kind of device that they ran on, GPUs first; nothing of a CPU stands beside a figure of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import plain
from bench.agreement import agreements
from bench.claims import answers
from bench.gathered import gathered
from bench.record import idle
from bench.verdicts import MARGIN, Paired, judge, reported
from matrix.job import RunResult
from matrix.observe import Observation

DEVICES: Mapping[str, str] = {
    "cuda": "On GPUs",
    "cpu": "On a CPU: every part is exercised; no figure here says anything of a GPU",
}


def section(result: RunResult) -> dict[str, object] | None:
    """Return what is kept of benches, judged; None where nothing is."""
    return of_observations(result.benches)


def of_observations(observations: Iterable[Observation], margin: float = MARGIN) -> dict[str, object] | None:
    """Return the section of these observations; None where none is of a bench."""
    kept = tuple(observations)
    paired = judge(reported(gathered(kept)), margin=margin)
    unrun = idle(kept)
    if not paired and not unrun:
        return None
    why = {f"{one.pairing}": f"{one.standing}: {one.why}" for one in unrun}
    return {
        "margin": margin,
        "groups": [_group(device, [one for one in paired if one.device == device]) for device in DEVICES
                   if any(one.device == device for one in paired)],
        "idle": [plain.idle(one) for one in unrun],
        "agreement": [plain.agreement(one) for one in agreements([one for one in paired if one.device != "cpu"])],
        "claims": [plain.answer(one) for one in answers(paired, standings=why)],
        "gpu_minutes": round(sum(one.gpu_seconds for one in paired) / 60, 1),
    }  # fmt: skip


def _group(device: str, paired: Sequence[Paired]) -> dict[str, Any]:
    startups = [one.judgements[0].gathered.startup for one in paired]
    known = [share for share in startups if share is not None]
    return {
        "device": device,
        "title": DEVICES[device],
        "machines": sorted({one.judgements[0].gathered.machine for one in paired}),
        "gpu_minutes": round(sum(one.gpu_seconds for one in paired) / 60, 1),
        "startup": round(sum(known) / len(known), 3) if known else None,
        "pairings": [plain.pairing(one) for one in paired],
    }


def markdown(data: Mapping[str, Any]) -> str:
    """Return the section as Markdown: a table of verdicts a kind of device, the promises, what was not run."""
    lines = [f"## Benches\n\n{data['gpu_minutes']:g} minutes of GPU time; sameness is within {data['margin']:.0%}."]
    for group in data["groups"]:
        lines.append(f"\n### {group['title']}\n")
        lines += _md_table(
            ("pairing", "recipe", "metric", "ratio B/A", "95 % interval", "n", "verdict", "numerics"),
            [
                (
                    one["pairing"], one["recipe"], item["metric"], _figure(item["ratio"]), interval(item),
                    "+".join(map(str, item["n"])), item["verdict"], one["numerics"],
                )
                for one in group["pairings"]
                for item in one["judgements"]
                if item["main"]
            ],
        )  # fmt: skip
    if data["idle"]:
        lines += ["\n### Not run\n"]
        rows = [(one["pairing"], one["recipe"], one["standing"], one["why"]) for one in data["idle"]]
        lines += _md_table(("toggle", "recipe", "standing", "why"), rows)
    lines += ["\n### What guides promise\n"]
    claims = [
        (
            one["says"], f"{one['metric']} {one['promised']}", _figure(one["ratio"]), interval(one),
            "+".join(map(str, one["n"])), one["verdict"], one["why"],
        )
        for one in data["claims"]
    ]  # fmt: skip
    return "\n".join(
        [*lines, *_md_table(("claim", "promised", "measured", "95 % interval", "n", "verdict", "why"), claims), ""]
    )


def _md_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"

    return [line(heads), "|" + " --- |" * len(heads), *(line(row) for row in rows)]


def interval(item: Mapping[str, Any]) -> str:
    """Return an interval for people; "none" where there is none."""
    return "none" if item["low"] is None else f"{item['low']:.3f} to {item['high']:.3f}"


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
