"""What the name of a container image tells of the versions in it: by known repositories, and by words in its tag."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from matrix.statements.statement import PYTHON, Force, Notes, Statement

_REPOSITORIES = {
    "vllm/vllm-openai": "vllm",
    "pytorch/pytorch": "torch",
    "lmsysorg/sglang": "sglang",
    "rayproject/ray": "ray",
    "python": PYTHON,
}
_WORDS = {
    "vllm": "vllm",
    "torch": "torch",
    "th": "torch",
    "transformers": "transformers",
    "tf": "transformers",
    "sglang": "sglang",
    "sgl": "sglang",
    "fa": "flash-attn",
    "mcore": "megatron-core",
    "te": "transformer-engine",
    "trtllm": "tensorrt-llm",
    "verl": "verl",
    "ray": "ray",
    "py": PYTHON,
}
_ANY = "|".join(sorted(_WORDS, key=len, reverse=True))
_WORD = re.compile(rf"(?<![a-z0-9])({_ANY})[-_]?v?(\d+(?:\.\d+)+(?:\.post\d+)?)")
_COMPACT = re.compile(r"(?<![a-z0-9])(vllm|sgl|sglang)0(\d{2})(?!\d)")
_LEADING = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)(?![\w.])")


def read_image(notes: Notes, image: str, line: int, scope: str) -> None:
    """Keep in `notes` what the name of an image says; each is vague, and means a release with all its patches."""
    for package, version in _told(image):
        notes.keep(
            Statement(
                place=notes.place(line),
                package=package,
                text=image,
                source=notes.source,
                force=Force.BASE,
                specifier=SpecifierSet(f"=={version}.*"),
                scope=scope,
                vague=package != PYTHON,
            )
        )


def _told(image: str) -> Iterator[tuple[str, str]]:
    """Yield package and version, each package once; the repository's own name says most."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or not name:
        return
    seen = set()
    for repository, package in _REPOSITORIES.items():
        match = _LEADING.match(tag)
        if match and (name == repository or name.endswith(f"/{repository}")):
            seen.add(package)
            yield package, match[1]
    for word, version in _WORD.findall(f"{name.rpartition('/')[2]}-{tag}".lower()):
        if _WORDS[word] not in seen:
            seen.add(_WORDS[word])
            yield _WORDS[word], version
    for word, digits in _COMPACT.findall(tag.lower()):
        if _WORDS[word] not in seen:
            seen.add(_WORDS[word])
            # vllm017 is 0.17, sgl059 is 0.5.9: so the two count their releases.
            yield _WORDS[word], f"0.{int(digits)}" if word == "vllm" else f"0.{digits[0]}.{digits[1]}"
