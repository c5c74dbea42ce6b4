"""uv's derivations, recorded (uv 0.13.9), and the facts that they start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.resolve.derivation import mentioned, premises

GOLDEN = Path(__file__).parent / "golden" / "resolve"


def recorded(name: str) -> str:
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    return text[text.index("error: ") :].split("\nhint: ")[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "direct",
            (
                "vllm>=0.33.0 depends on transformers>=5.16.1,<5.21.0",
                "verl>=0.9.1 depends on transformers>=5.5.3,<5.6.0 or transformers>5.6.0,<5.11",
            ),
        ),
        (
            "transitive",
            (
                "opencv-python-headless>=4.13.0.90 depends on numpy>=2",
                "vllm==0.17.0 depends on opencv-python-headless>=4.13.0",
                "verl==0.7.0 depends on numpy<2.0.0",
            ),
        ),
        ("core", ("opencv-python-headless>=4.13.0.90 depends on numpy>=2",)),
        ("absent", ("there is no version of vllm==0.5.4.post1",)),
        ("unknown", ("no-such-package-zz was not found in the package registry",)),
        (
            "abi",
            (
                (
                    "tensordict>=0.8.0,<=0.8.3 and tensordict>=0.9.1,<=0.10.0 have no wheels with a matching Python "
                    "ABI tag (e.g., `cp314`)"
                ),
                (
                    "only the following versions of tensordict are available: tensordict<=0.8.3 or tensordict==0.9.0 "
                    "or tensordict>=0.9.1"
                ),
                "verl==0.9.0 depends on tensordict>=0.8.0,<0.9.0 or tensordict>0.9.0,<=0.10.0",
            ),
        ),
        (
            "marker",
            (
                "sglang==0.5.12 depends on xgrammar==0.2.0",
                "vllm==0.24.0 depends on xgrammar>=0.2.1,<1.0.0",
                "verl[sglang]>=0.9.1 depends on sglang==0.5.12",
            ),
        ),
        (
            "pyreq",
            (
                "the requested Python version (>=3.9) does not satisfy Python>=3.10,<3.13",
                "verl==0.9.1 depends on Python>=3.10,<3.13",
                "only verl<=0.9.1 is available",
            ),
        ),
        (
            "open",
            (
                "vllm==0.30.0 depends on transformers>=5.10.4",
                "vllm==0.31.0 depends on transformers>=5.10.4,<5.18.0",
                "vllm==0.32.0 depends on transformers>=5.16.1,<5.20.0",
                "vllm>=0.33.0 depends on transformers>=5.16.1,<5.21.0",
            ),
        ),
    ],
)
def test_premises(name: str, expected: tuple[str, ...]) -> None:
    assert premises(recorded(name)) == expected


def test_a_long_derivation_with_numbered_steps_gives_only_what_was_read() -> None:
    found = premises(recorded("numbered"))
    assert len(found) == 174
    assert len(set(found)) == len(found)
    verbs = (" depends on ", " depend on ", "there is no version of ", "are available: ", " is available")
    assert [premise for premise in found if not any(verb in premise for verb in verbs)] == []
    # Concluded in step (2) and recalled by number later; never stated by a package.
    assert "vllm>=0.20.1,<=0.20.2 depends on fastapi[standard]>=0.116.0" not in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("error: something else", ()),
        ("Because a==1 was yanked (reason: bad and ugly) and you require a==1, we can conclude that x.",
         ("a==1 was yanked (reason: bad and ugly)",)),
        ("Because a==1 depends on b>=1 and c and you require a==1, we can conclude that x.",
         ("a==1 depends on b>=1 and c",)),
        ("Because a is b, we can conclude that c. And because a is b and d is bad, we can conclude that e.",
         ("a is b", "d is bad")),
        ("Because any of: a==1 a==2 depend on b and you require b<1, we can conclude that x.",
         ("a==1 and a==2 depend on b",)),
    ],
)  # fmt: skip
def test_premises_of_short_texts(text: str, expected: tuple[str, ...]) -> None:
    assert premises(text) == expected


def test_mentioned_spells_names_as_the_index_does() -> None:
    found = mentioned("Because Flash_Attn>=2.0 depends on opencv-python-headless[x]>=4")
    assert {"flash-attn", "opencv-python-headless", "x"} <= found
