"""The command `claims`: what guides publish about the stack, what is known of each statement, and checking it now."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.claims.claim import Claim
    from matrix.claims.judging import Judged
    from matrix.cli.front import Front
    from matrix.home import Home

MORE = """

  verl-matrix claims list --verdict false --topic pins
  verl-matrix claims show A014
  verl-matrix claims check --id A014

`check` looks at the releases on the index now and keeps what it finds in --home; 1 where a verdict is another than the
one that came with this release."""


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command."""
    parser.add_argument("action", nargs="?", choices=["list", "show", "check"], default="list")
    parser.add_argument("spec", nargs="*", metavar="ID", help="show, check: the claims, e.g. A014")
    parser.add_argument("--id", action="append", default=[], metavar="ID", help="only this claim; may be repeated")
    parser.add_argument("--topic", metavar="NAME", help="only claims of this topic")
    parser.add_argument("--guide", metavar="NAME", help="only claims of this guide")
    parser.add_argument("--verdict", metavar="WORD", help="only claims with this verdict")
    parser.add_argument("--record", action="store_true", help="check: write what travels with the project (a checkout)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what was asked; 0, or 1 where `check` comes to other verdicts than those that are shipped."""
    from matrix.claims.loading import load_claims
    from matrix.claims.results import NAME, SHIPPED, known
    from matrix.home import Home

    home = Home.find(args.home)
    claims = _chosen(args, load_claims())
    if args.action == "check":
        return _check(args, claims, home)
    found = dict(zip((claim.id for claim in claims), known(claims, SHIPPED, home.store / NAME), strict=True))
    if args.verdict:
        _refuse_verdict(args.verdict)
        claims = [claim for claim in claims if found[claim.id].verdict.value == args.verdict]
    if args.json:
        _say(json.dumps([_data(claim, found[claim.id]) for claim in claims], indent=2, ensure_ascii=False))
    elif args.action == "show":
        if not (args.spec or args.id):
            from matrix.errors import UsageError

            raise UsageError("`claims show` names no claim.", then="`claims list` shows their ids.")
        _say("\n\n".join(_text(claim, found[claim.id]) for claim in claims))
    else:
        _list(claims, [found[claim.id] for claim in claims])
    return 0


def _chosen(args: argparse.Namespace, claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims that the words name; raises UsageError for an id, topic or guide that is not there."""
    from matrix.claims.claim import Topic
    from matrix.claims.loading import load_guides
    from matrix.errors import UsageError
    from matrix.nearness import near_names

    wanted = [name.upper() for name in (*args.spec, *args.id)]
    ids = {claim.id for claim in claims}
    for name in wanted:
        if name not in ids:
            near = near_names(name, ids)
            hint = f"Closest: {', '.join(near)}." if near else ""
            raise UsageError(f"There is no claim `{name}`.", why=hint, then="`claims list` shows their ids.")
    for given, there, what in ((args.topic, list(Topic), "topic"), (args.guide, list(load_guides()), "guide")):
        if given and given not in there:
            raise UsageError(f"There is no {what} `{given}` of claims.", then=f"They are {', '.join(there)}.")
    return [
        claim
        for claim in claims
        if (not wanted or claim.id in wanted)
        and (not args.topic or claim.topic.value == args.topic)
        and (not args.guide or claim.guide == args.guide)
    ]


def _refuse_verdict(given: str) -> None:
    from matrix.claims.claim import ClaimVerdict
    from matrix.errors import UsageError

    if given not in {word.value for word in ClaimVerdict}:
        raise UsageError(f"There is no verdict `{given}` of claims.", then=f"They are {', '.join(ClaimVerdict)}.")


def _check(args: argparse.Namespace, claims: Sequence[Claim], home: Home) -> int:
    """Run the checks now, keep what they find, and print it; 1 where a verdict is another than the shipped one."""
    from datetime import UTC, datetime

    from matrix import __version__
    from matrix.claims.claim import How
    from matrix.claims.judging import judge
    from matrix.claims.library import Library
    from matrix.claims.loading import load_claims
    from matrix.claims.results import NAME, SHIPPED, known, write_results
    from matrix.cli import wiring
    from matrix.errors import NothingRanError

    home.prepare()
    checked = [claim for claim in claims if claim.checks]
    if not checked:
        why = "; ".join(sorted({claim.untested or "by reading" for claim in claims})[:3])
        raise NothingRanError("None of these claims has a check that can be run.", why=why)
    before = {item.id: item for item in known(checked, SHIPPED)}
    library = Library(wiring.open_index(args, home), home.cache)
    today = datetime.now(UTC).date()
    kept = SHIPPED if args.record else home.store / NAME
    among = {claim.id for claim in load_claims() if claim.checks}
    found = []
    for claim in checked:
        judged = judge(claim, library, today, __version__)
        found.append(judged)
        if not args.json:
            _say(f"{claim.id}  {judged.verdict.value:<13}  {claim.statement}")
            _say(f"      {judged.why}")
        write_results(kept, [judged], among)
    other = [item for item in found if before[item.id].how is How.COMPUTED and before[item.id].verdict != item.verdict]
    if args.json:
        _say(json.dumps([item.to_json() for item in found], indent=2, ensure_ascii=False))
    else:
        for item in other:
            _say(f"{item.id} was {before[item.id].verdict.value} in what is shipped, and is {item.verdict.value} now")
        _say(f"{_counts(found)}: {len(found)} claims checked, {len(other)} otherwise than in what is shipped.")
    return 1 if other else 0


def _list(claims: Sequence[Claim], found: Sequence[Judged]) -> None:
    from matrix.claims.claim import TITLES

    topic = None
    for claim, judged in sorted(zip(claims, found, strict=True), key=lambda pair: (pair[0].topic, pair[0].id)):
        if claim.topic is not topic:
            topic = claim.topic
            _say(f"{topic.value}: {TITLES[topic]}")
        _say(f"  {claim.id}  {judged.verdict.value:<13}  {judged.how.value:<8}  {claim.statement}")
    hows = Counter(item.how.value for item in found)
    told = ", ".join(f"{count} {_HOWS[how]}" for how, count in sorted(hows.items()))
    _say(f"{_counts(found)}, of {len(found)} claims: {told}.")


_HOWS = {"computed": "computed by checks", "reading": "by reading", "none": "not tried"}


def _counts(found: Sequence[Judged]) -> str:
    counts = Counter(item.verdict.value for item in found)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"


def _text(claim: Claim, judged: Judged) -> str:
    """Return one claim for people: the statement, the verdict, and what that rests on."""
    from matrix.claims.loading import load_guides

    guide = load_guides()[claim.guide]
    when = f", {judged.on}" if judged.on else ""
    rows = [
        ("stands in", f"{guide.title}, section {claim.section} ({guide.published})"),
        ("verdict", f"{judged.verdict.value} ({_HOWS[judged.how.value]}{when})"),
        ("why", judged.why),
        *(("checked", about) for about in judged.asked),
        *(("for" if look.supports else "against", _look(look.subject, look.text, look.place)) for look in judged.looks),
        ("more", f"{judged.more} more were looked at" if judged.more else ""),
        ("beyond", claim.beyond),
        ("instead", claim.instead),
        ("failures", ", ".join(claim.failures)),
        ("measured", ", ".join(claim.pairings)),
    ]
    return "\n  ".join([f"{claim.id} [{claim.topic.value}]: {claim.statement}", *(f"{n:<9} {t}" for n, t in rows if t)])


def _look(subject: str, text: str, place: str) -> str:
    return f"{subject}: {text}" + (f" ({place})" if place else "")


def _data(claim: Claim, judged: Judged) -> dict[str, object]:
    return {
        **judged.to_json(),
        "statement": claim.statement,
        "topic": claim.topic.value,
        "guide": claim.guide,
        "section": claim.section,
        "beyond": claim.beyond,
        "instead": claim.instead,
        "failures": list(claim.failures),
        "pairings": list(claim.pairings),
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
