"""What the checks of claims found: one JSON file that travels with the project, one in the home of whoever ran them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from matrix.atomic import replace_file
from matrix.claims.claim import Claim
from matrix.claims.judging import Judged, unchecked
from matrix.errors import DataError, NewerSchemaError

SCHEMA = 1
SHIPPED = Path(__file__).with_name("results.json")
"""What was found when the records were last checked for a release of this project."""
NAME = "claims.json"
"""The file in a home's store."""


def read_results(path: Path) -> Mapping[str, Judged]:
    """Return the verdicts that a file holds, by id of the claim; none where there is no such file.

    Raises:
        DataError: the file cannot be read.
        NewerSchemaError: it was written by a newer release of this tool.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(path, "", f"cannot be read: {error}", then="Run `verl-matrix claims check` again.") from error
    try:
        if data["schema"] > SCHEMA:
            raise NewerSchemaError(
                f"{path} has schema {data['schema']}; this release reads schema {SCHEMA}.",
                then="Upgrade verl-matrix, or remove the file and check again.",
            )
        return {item["id"]: Judged.from_json(item) for item in data["claims"]}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path, "claims", f"holds no verdicts: {error!r}", then="Remove it and check again.") from error


def write_results(path: Path, found: Iterable[Judged], among: Collection[str] | None = None) -> None:
    """Write the verdicts beside those that the file holds of other claims, whole or not at all; raises OSError.

    With `among` nothing is kept of claims that are not named there: they have gone, or have no check any more.
    """
    kept = {**read_results(path), **{item.id: item for item in found}}
    if among is not None:
        kept = {name: item for name, item in kept.items() if name in among}
    rows = [json.dumps(kept[name].to_json(), ensure_ascii=False, sort_keys=True) for name in sorted(kept)]
    body = ",\n".join(rows)
    replace_file(path, f'{{"schema": {SCHEMA}, "claims": [\n{body}\n]}}\n'.encode())


def known(claims: Sequence[Claim], *paths: Path) -> tuple[Judged, ...]:
    """Return what is known of each claim: the latest of what the files hold, a reading, or that nothing was run.

    What was found by other checks than the record has now does not count. Raises as `read_results`.
    """
    stored = [read_results(path) for path in paths]
    found = []
    for claim in claims:
        asked = tuple(check.about for check in claim.checks)
        hits = [results[claim.id] for results in stored if claim.id in results]
        hits = [item for item in hits if asked and item.asked == asked and item.on is not None]
        # Of two of one day the one of the later file: the user's own comes after what is shipped.
        found.append(max(reversed(hits), key=lambda item: str(item.on)) if hits else unchecked(claim))
    return tuple(found)
