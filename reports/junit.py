"""JUnit XML: one test case for every cell and static tier, and for every probe, for whatever shows test results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree as ET

from matrix.figures import limits, machines
from matrix.job import RunResult
from matrix.observe import Observation
from matrix.tier import Outcome, Status, Tier
from matrix.verdict import Verdict
from reports import headline
from reports.gpu import machine_rows, threshold_words

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
        if tally.tier is Tier.GPU:
            _machines(suite, result.verdicts)
        for verdict in result.verdicts:
            if tally.tier.is_deep:
                _probes(suite, verdict, tally.tier)
            else:
                _case(suite, verdict, tally.tier, result.expected.get(verdict.cell.name))
        counts = {
            "tests": len(suite.findall("testcase")),
            "failures": len(suite.findall("*/failure")),
            "skipped": len(suite.findall("*/skipped")),
        }
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
        out = ET.SubElement(suite, "system-out")
        out.text = _clean(f"{headline.denominator(result)} {headline.provenance(result)}")
    for suite in (*_recorded(result), *_measured(result)):
        suites.append(suite)
        for name in totals:
            totals[name] += int(suite.get(name, "0"))
    for name, count in totals.items():
        suites.set(name, str(count))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _recorded(result: RunResult) -> Iterator[ET.Element]:
    """Yield a suite of what was not tried here and is recorded elsewhere; nothing of it passes or fails this run."""
    suite = ET.Element("testsuite", name="shipped evidence")
    for verdict in result.verdicts:
        for item in verdict.recorded:
            name = _clean(f"{verdict.cell.name} ({item.shipped})")
            reasons = [line for line in verdict.reasons if line.startswith(item.tier.value)]
            _aside(suite, f"evidence.{item.tier}", name, f"not tried here; {item.line}", "\n".join(reasons))
    yield from _counted(suite)


def _measured(result: RunResult) -> Iterator[ET.Element]:
    """Yield a suite of the thresholds of memory, each a case that passes where it was found here."""
    suite = ET.Element("testsuite", name="thresholds")
    for limit in limits(item for verdict in result.verdicts for item in verdict.evidence):
        item, name = limit.observation, _clean(f"{limit.workload} {limit.knob} {limit.cap}")
        words = "\n".join(f"{word}: {value}" for word, value in threshold_words(limit.to_json()).items())
        where = f"thresholds.{limit.cell}"
        if item.shipped or not limit.answered:
            told = f"not tried here; {item.reason}, {item.machine}, shipped evidence" if item.shipped else item.reason
            _aside(suite, where, name, told, words)
            continue
        case = ET.SubElement(suite, "testcase", classname=_clean(where), name=name, time=f"{limit.seconds:.3f}")
        ET.SubElement(case, "system-out").text = _clean(words)
    yield from _counted(suite)


def _aside(suite: ET.Element, where: str, name: str, told: str, words: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=_clean(where), name=name, time="0.000")
    ET.SubElement(case, "skipped", message=_clean(told))
    ET.SubElement(case, "system-out").text = _clean(words)


def _counted(suite: ET.Element) -> Iterator[ET.Element]:
    """Yield the suite with its counts, where there is a case in it."""
    if len(suite):
        for name, tag in (("failures", "*/failure"), ("skipped", "*/skipped")):
            suite.set(name, str(len(suite.findall(tag))))
        suite.set("tests", str(len(suite)))
        suite.set("errors", "0")
        suite.set("time", f"{sum(float(case.get('time', '0')) for case in suite):.3f}")
        yield suite


def _machines(suite: ET.Element, verdicts: Sequence[Verdict]) -> None:
    """Add what the GPU machines of this run were, as properties of a suite."""
    here = [item for verdict in verdicts for item in verdict.evidence if not item.shipped]
    rows = []
    for number, item in enumerate(machines(here).values()):
        facts = item.detail.get("facts")
        rows += (
            [(f"machine{number or ''}.{name}", value) for name, value in machine_rows(facts)]
            if isinstance(facts, Mapping)
            else []
        )
    if rows:
        held = ET.SubElement(suite, "properties")
        for name, value in rows:
            ET.SubElement(held, "property", name=_clean(name), value=_clean(value))


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
