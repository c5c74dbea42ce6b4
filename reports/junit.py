"""JUnit XML: one test case for every cell and static tier, and for every probe, for whatever shows test results."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from matrix.job import RunResult
from matrix.observe import Observation
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict
from reports import headline

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DECIDING = {Status.CONFLICT: Tier.RESOLVE, Status.BROKEN: Tier.SURFACE, Status.DEGRADED: Tier.SURFACE}
"""At which tier an expected status is looked for."""


def junit(result: RunResult) -> str:
    """Return the result as JUnit XML.

    A tier that is broken or in conflict is a failure, unless the cell was expected to be just so; one that was expected
    and did not come is a failure too. A tier without an answer is skipped, with the reason. A degraded tier passes and
    names its features. A probe that sees the failure that its record predicts passes; one that contradicts its record
    is a failure of the type `record wrong`.
    """
    suites = ET.Element("testsuites", name="verl-matrix")
    totals = {"tests": 0, "failures": 0, "skipped": 0}
    for tally in result.tallies:
        suite = ET.SubElement(suites, "testsuite", name=tally.tier.value, time=f"{tally.seconds:.3f}", errors="0")
        suite.set("timestamp", f"{result.at:%Y-%m-%dT%H:%M:%S}")
        for verdict in result.verdicts:
            if tally.tier.is_deep:
                _probes(suite, verdict, tally.tier)
            else:
                _case(suite, verdict, tally.tier, result.expected.get(verdict.cell.name))
        counts = {
            "tests": len(suite),
            "failures": len(suite.findall("*/failure")),
            "skipped": len(suite.findall("*/skipped")),
        }
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
        out = ET.SubElement(suite, "system-out")
        out.text = _clean(f"{headline.denominator(result)} {headline.provenance(result)}")
    totals = {name: count + more for (name, count), more in zip(totals.items(), _recorded(suites, result), strict=True)}
    for name, count in totals.items():
        suites.set(name, str(count))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _recorded(suites: ET.Element, result: RunResult) -> tuple[int, int, int]:
    """Add a suite of what was not tried here and is recorded elsewhere; nothing of it passes or fails this run.

    Returns how many cases there are, how many failed, how many are skipped.
    """
    told = [(verdict, item) for verdict in result.verdicts for item in verdict.recorded]
    if not told:
        return (0, 0, 0)
    count = str(len(told))
    suite = ET.SubElement(suites, "testsuite", name="shipped evidence", tests=count, skipped=count)
    for name, value in (("failures", "0"), ("errors", "0"), ("time", "0.000")):
        suite.set(name, value)
    for verdict, item in told:
        where, name = f"evidence.{item.tier}", _clean(f"{verdict.cell.name} ({item.shipped})")
        case = ET.SubElement(suite, "testcase", classname=where, name=name, time="0.000")
        ET.SubElement(case, "skipped", message=_clean(f"not tried here; {item.line}"))
        reasons = [line for line in verdict.reasons if line.startswith(item.tier.value)]
        ET.SubElement(case, "system-out").text = _clean("\n".join(reasons))
    return (len(told), 0, len(told))


def _case(suite: ET.Element, verdict: Verdict, tier: Tier, expected: Status | None) -> None:
    observation = verdict.observation(tier)
    seconds = observation.seconds if observation else 0.0
    case = ET.SubElement(suite, "testcase", classname=tier.value, name=verdict.cell.name, time=f"{seconds:.3f}")
    outcome = observation.outcome if observation else Outcome.UNTESTED
    reason = _clean(observation.reason if observation else "nothing was asked")
    looked_for = expected in _DECIDING and _DECIDING[expected] is tier
    if outcome is Outcome.UNTESTED:
        ET.SubElement(case, "skipped", message=reason)
    elif looked_for and verdict.status is not expected:
        words = f"expected {expected}, but the cell is {verdict.status}"
        ET.SubElement(case, "failure", message=words, type="expectation").text = _text(verdict, observation)
    elif not _fails(verdict, tier) or looked_for:
        ET.SubElement(case, "system-out").text = _text(verdict, observation)
    else:
        ET.SubElement(case, "failure", message=reason, type=outcome.value).text = _text(verdict, observation)


def _probes(suite: ET.Element, verdict: Verdict, tier: Tier) -> None:
    """Add a case for each probe of the cell at a tier; none where the cell was not to be tried so deep."""
    for item in verdict.evidence:
        if item.question.tier is not tier or item.shipped or item.question.measures:
            continue
        where = f"{tier.value}.{verdict.cell.name}"
        name = item.question.probe.removeprefix("compat/")
        case = ET.SubElement(suite, "testcase", classname=_clean(where), name=_clean(name), time=f"{item.seconds:.3f}")
        wrong, text = item.detail.get("disagreement"), _probe_text(item)
        if item.outcome is Outcome.UNTESTED:
            ET.SubElement(case, "skipped", message=_clean(item.reason))
        elif wrong:
            words = f"{item.detail.get('failure')}: {wrong}"
            ET.SubElement(case, "failure", message=_clean(words), type="record wrong").text = text
        elif item.outcome is Outcome.OK or item.detail.get("seen") == "reproduced":
            ET.SubElement(case, "system-out").text = text
        else:
            ET.SubElement(case, "failure", message=_clean(item.reason), type=item.outcome.value).text = text


def _probe_text(item: Observation) -> str:
    detail = item.detail
    lines = [f"outcome: {item.outcome}", item.reason]
    lines += [f"proposal: {detail['proposal']}"] if detail.get("proposal") else []
    way_out = detail.get("way_out")
    if detail.get("seen") == "reproduced" and isinstance(way_out, list):
        lines += [f"way out: {step}" for step in way_out]
    lines += [str(detail["text"])] if detail.get("text") else []
    lines.append(f"evidence: {item.question.key} ({item.at.isoformat()}, {item.machine})")
    return _clean("\n".join(line for line in lines if line))


def _fails(verdict: Verdict, tier: Tier) -> bool:
    """Return whether this tier counts against the cell: a waived conflict or an uncertain finding does not."""
    if tier is Tier.RESOLVE:
        return verdict.status is Status.CONFLICT
    observation = verdict.observation(tier)
    return verdict.works is Outcome.BROKEN and observation is not None and observation.outcome is Outcome.BROKEN


def _text(verdict: Verdict, observation: Observation | None) -> str:
    """Return what a reader of the case needs: the whole verdict, and where the evidence is."""
    lines = [f"status: {verdict.status}", *verdict.reasons]
    if verdict.features:
        lines.append(f"features: {', '.join(verdict.features)}")
    if observation is not None:
        lines.append(f"evidence: {observation.question.key} ({observation.at.isoformat()}, {observation.machine})")
    return _clean("\n".join(lines))


def _clean(text: str) -> str:
    """Return the text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
