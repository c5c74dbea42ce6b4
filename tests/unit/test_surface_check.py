"""The checker over an index, and the known answers of the stack on trees of a few lines."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cell import Axis, Cell, Pin
from matrix.errors import UnknownReleaseError
from matrix.finding import Effect, Finding, Kind
from matrix.observe import Observation
from matrix.surface.check import SurfaceChecker
from matrix.surface.report import failing_imports, judge
from matrix.surface.world import World
from matrix.tier import Outcome, Tier
from tests.unit.fakes import FakeIndex, FakeRelease
from tests.unit.source_trees import archives
from tests.unit.surface_case import MAIN, PACKAGES, SERVER, body, lines, report_of, subject_of

VERL = dict.fromkeys(PACKAGES, "") | {
    MAIN: "from vllm.layer import FusedMoE\n" + body("from vllm import SamplingParams\nSamplingParams(top_p=1)")
}
NEW = {"vllm/__init__.py": "def SamplingParams(n=1): ...\n", "vllm/layer.py": ""}
OLD = {"vllm/__init__.py": "def SamplingParams(top_p=1): ...\n", "vllm/layer.py": "class FusedMoE: ...\n"}
MIDDLE = {**OLD, "vllm/__init__.py": NEW["vllm/__init__.py"]}


def index() -> FakeIndex:
    return FakeIndex(
        {
            "verl": {"0.9.1": FakeRelease(files=VERL), "0.8.0": FakeRelease(files={**VERL, MAIN: ""})},
            "vllm": {
                "0.24.0": FakeRelease(files=OLD, tags="cp38-abi3-manylinux_2_31_x86_64"),
                "0.25.0": FakeRelease(files=MIDDLE, tags="cp38-abi3-manylinux_2_99_x86_64"),
                "0.33.0": FakeRelease(files=NEW, sdist_only=True),
            },
        }
    )


def versions(**pins: str) -> dict[Axis, Version]:
    return {Axis(name): Version(version) for name, version in pins.items()}


def cell(**pins: str) -> Cell:
    return Cell(pins=tuple(Pin(axis=axis, version=version) for axis, version in versions(**pins).items()))


def observe(checker: SurfaceChecker, **pins: str) -> Observation:
    return checker.observe(cell(**pins), versions(**pins))


PAIRS = [
    ({"verl": "0.9.1", "vllm": "0.24.0"}, Outcome.OK, ""),
    (
        {"verl": "0.9.1", "vllm": "0.25.0"},
        Outcome.BROKEN,
        "training fails: vllm.SamplingParams() takes no keyword top_p",
    ),
    (
        {"verl": "0.9.1", "vllm": "0.33.0"},
        Outcome.BROKEN,
        "ppo cannot be imported: cannot import FusedMoE from vllm.layer",
    ),
    ({"verl": "0.8.0", "vllm": "0.33.0"}, Outcome.OK, ""),
    ({"vllm": "0.33.0"}, Outcome.UNTESTED, "the cell has no release of verl"),
    ({"verl": "0.9.1"}, Outcome.UNTESTED, "the cell has nothing but verl"),
]


@pytest.mark.parametrize(("pins", "outcome", "reason"), PAIRS)
def test_observations(tmp_path: Path, pins: Mapping[str, str], outcome: Outcome, reason: str) -> None:
    found = observe(SurfaceChecker(index(), tmp_path), **pins)
    assert (found.outcome, found.reason.partition(";")[0]) == (outcome, reason)
    assert found.question == SurfaceChecker(index(), tmp_path).question(cell(**pins), versions(**pins))
    assert found.question.tier is Tier.SURFACE
    assert found.machine == "static"


def test_the_detail(tmp_path: Path) -> None:
    checker = SurfaceChecker(index(), tmp_path)
    found = observe(checker, verl="0.9.1", vllm="0.33.0").detail
    assert found["versions"] == {"verl": "0.9.1", "vllm": "0.33.0"}
    assert found["entry_points"] == {"verl": "ok", "ppo": "breaks", "vllm-rollout": "ok"}
    assert found["counts"] == {"breaks-import": 1}
    assert isinstance(found["findings"], list)
    assert Finding.from_json(found["findings"][0]).symbol == "vllm.layer.FusedMoE"
    assert found["wheel_bytes"] == sum(len(text) for text in (*VERL.values(), *NEW.values()))
    assert isinstance(found["bytes_read"], int)
    assert found["bytes_read"] > 0
    # What is loaded is not read again.
    assert observe(checker, verl="0.9.1", vllm="0.33.0").detail["bytes_read"] == 0


def test_the_question_needs_no_file_and_changes_with_what_is_read(tmp_path: Path) -> None:
    fake = index()
    checker = SurfaceChecker(fake, tmp_path)
    keys = {
        checker.question(cell(verl="0.9.1", vllm=v), versions(verl="0.9.1", vllm=v)).key for v in ("0.24.0", "0.33.0")
    }
    assert len(keys) == 2
    assert not [name for name in fake.asked if name.startswith("archive:")]
    reads = checker.question(cell(verl="0.9.1", vllm="0.33.0"), versions(verl="0.9.1", vllm="0.33.0")).reads
    assert set(reads) == {"verl-0.9.1-py3-none-any.whl", "vllm-0.33.0.tar.gz", "verl.toml"}


def test_a_release_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownReleaseError):
        observe(SurfaceChecker(index(), tmp_path), verl="0.9.1", vllm="0.99.0")


def test_cells_of_one_release_of_verl_load_it_once(tmp_path: Path) -> None:
    fake = index()
    checker = SurfaceChecker(fake, tmp_path)
    pins = [{"verl": verl, "vllm": vllm} for verl in ("0.9.1", "0.8.0") for vllm in ("0.24.0", "0.25.0", "0.33.0")]
    found = [checker.observe(cell(**item), versions(**item)) for item in pins]
    assert [item.outcome for item in found] == ["ok", "broken", "broken", "ok", "ok", "ok"]
    archives_read = {name: count for name, count in fake.asked.items() if name.startswith("archive:")}
    assert set(archives_read.values()) == {1}
    assert len(archives_read) == 5


def test_a_release_of_verl_is_let_go_when_the_next_one_is_loaded(tmp_path: Path) -> None:
    checker = SurfaceChecker(index(), tmp_path)
    observe(checker, verl="0.9.1", vllm="0.33.0")
    assert checker._subject is not None
    module = checker._subject[1].module("verl")
    assert module is not None
    assert module.tree is not None
    # A cycle through the tree, as execution makes them: only the collector can free it.
    module.tree.cycle = module.tree  # type: ignore[attr-defined]
    gc.freeze()
    tree = weakref.ref(module.tree)
    del module
    observe(checker, verl="0.8.0", vllm="0.33.0")
    assert tree() is None


def finding(effect: Effect, *, certain: bool = True, default: bool = False, **more: object) -> Finding:
    values = {
        "kind": Kind.NAME_MISSING,
        "target": "vllm",
        "symbol": "vllm.x",
        "used_at": {"path": "verl/x.py"},
        "feature": "lora",
        "message": "m",
    }
    return Finding.from_json({**values, "effect": effect, "certain": certain, "default_path": default, **more})


JUDGED = [
    ([], Outcome.OK, ""),
    ([finding(Effect.GUARDED)], Outcome.OK, ""),
    ([finding(Effect.BREAKS_IMPORT, certain=False, entry_points=["ppo"])], Outcome.OK, ""),
    ([finding(Effect.BREAKS_IMPORT, entry_points=["ppo", "x"])], Outcome.BROKEN, "ppo cannot be imported: m"),
    ([finding(Effect.BREAKS_IMPORT, entry_points=["x"])], Outcome.DEGRADED, "m"),
    ([finding(Effect.BREAKS_FEATURE)], Outcome.DEGRADED, "m"),
    ([finding(Effect.BREAKS_FEATURE, default=True)], Outcome.BROKEN, "lora fails: m"),
    ([finding(Effect.BREAKS_FEATURE, default=True, certain=False)], Outcome.OK, ""),
    ([finding(Effect.DEGRADES)], Outcome.DEGRADED, "m"),
    ([finding(Effect.BREAKS_FEATURE, kind="package-absent")], Outcome.OK, ""),
]


@pytest.mark.parametrize(("findings", "outcome", "reason"), JUDGED)
def test_what_findings_come_to(findings: list[Finding], outcome: Outcome, reason: str) -> None:
    assert judge(tuple(findings), {"ppo": "breaks", "x": "breaks"}, frozenset({"ppo"})) == (outcome, reason)


def test_failing_imports_for_measuring() -> None:
    members = {"vllm/__init__.py": "", "torch/__init__.py": "", "torch/cuda/__init__.py": "def is_available(): ...\n"}
    found = archives(members)
    pins = {root: Version("1") for root in found}
    sources = {
        "verl/a.py": "import vllm.gone\n",
        "verl/b.py": "import flash_attn\n",
        "verl/c.py": "import verl.a\n",
        "verl/d.py": "import torch\nif torch.cuda.is_available():\n    import vllm.gone\n",
    }
    world = World(found, pins)
    modules = ["verl.a", "verl.b", "verl.c", "verl.d", "verl.nothing"]
    for gpu in (True, False):
        failing = failing_imports(subject_of(sources), world, pins, modules, absent=["flash_attn"], gpu=gpu)
        expected = {"verl.a": "vllm.gone", "verl.b": "absent", "verl.c": "vllm.gone"}
        assert failing == expected | ({"verl.d": "vllm.gone"} if gpu else {})


# The known answers, each as the lines of verl and of the target that matter.
UTILS = {"verl/utils/__init__.py": "", "verl/utils/vllm/__init__.py": "", "verl/utils/qat/__init__.py": ""}
FP8 = """
    try:
        from vllm.layer import FusedMoE
    except ImportError as e:
        raise ImportError("FP8 quantization not available") from e
"""
VISION = """
    try:
        from transformers import AutoModelForVision2Seq
    except ImportError:
        AutoModelForVision2Seq = None
"""
PATCH = """
    def patched():
        from vllm.quant import swizzle_blockscale
    TABLE = [("a", patched)]
"""
BY_VERSION = """
    import vllm
    from packaging import version
    def for_vllm11():
        from vllm.quant import gone
    def for_vllm14(): ...
    def main():
        if version.parse(vllm.__version__) >= version.parse("0.14"):
            for_vllm14()
        else:
            for_vllm11()
"""
LORA = """
    try:
        from vllm.lora.lora_model import LoRAModel
    except ImportError:
        from vllm.lora.models import LoRAModel
"""
OLD_GATE = """
    from importlib.metadata import version
    package_version = version("vllm")
    if package_version <= "0.6.3":
        from vllm import gone
    else:
        from vllm import LLM
"""
KNOWN: list[tuple[str, Mapping[str, str], Mapping[str, str], dict[str, str], list[str]]] = [
    (
        "FusedMoE gone: the rollout of verl 0.8 does not import, with a message about FP8",
        {
            **UTILS,
            "verl/utils/vllm/vllm_fp8_utils.py": FP8,
            SERVER: "from verl.utils.vllm.vllm_fp8_utils import x\n",
        },
        {"vllm/__init__.py": "", "vllm/layer.py": ""},
        {"vllm": "0.33.0"},
        ["breaks-import name-missing vllm.layer.FusedMoE"],
    ),
    (
        "AutoModelForVision2Seq gone: guarded where verl has another way",
        {MAIN: VISION},
        {"transformers/__init__.py": ""},
        {"transformers": "5.9.0"},
        ["guarded name-missing transformers.AutoModelForVision2Seq"],
    ),
    (
        "AutoModelForVision2Seq gone: verl 0.7.0 has no other way",
        {MAIN: "from transformers import AutoModelForVision2Seq\n"},
        {"transformers/__init__.py": ""},
        {"transformers": "5.9.0"},
        ["breaks-import name-missing transformers.AutoModelForVision2Seq"],
    ),
    (
        "swizzle_blockscale: a feature break, not an import break",
        {**UTILS, "verl/utils/qat/vllm_patch.py": PATCH},
        {"vllm/__init__.py": "", "vllm/quant.py": "", "vllm/nvfp4.py": "def swizzle_blockscale(): ...\n"},
        {"vllm": "0.24.0"},
        ["breaks-feature name-missing vllm.quant.swizzle_blockscale"],
    ),
    (
        "the branch for an old vLLM is dead on a new one",
        {MAIN: BY_VERSION},
        {"vllm/__init__.py": "", "vllm/quant.py": ""},
        {"vllm": "0.24.0"},
        ["breaks-feature? name-missing vllm.quant.gone"],
    ),
    (
        "and alive on an old one",
        {MAIN: BY_VERSION},
        {"vllm/__init__.py": "", "vllm/quant.py": ""},
        {"vllm": "0.11.0"},
        ["breaks-feature name-missing vllm.quant.gone"],
    ),
    (
        "lora models renamed, both names known to verl",
        {MAIN: LORA},
        {"vllm/__init__.py": "", "vllm/lora/__init__.py": "", "vllm/lora/models.py": "class LoRAModel: ...\n"},
        {"vllm": "0.12.0"},
        ["guarded module-missing vllm.lora.lora_model"],
    ),
    (
        "lora models renamed, neither name there",
        {MAIN: LORA},
        {"vllm/__init__.py": "", "vllm/lora/__init__.py": ""},
        {"vllm": "0.99.0"},
        ["breaks-import module-missing vllm.lora.models", "guarded module-missing vllm.lora.lora_model"],
    ),
    (
        "verl 0.2 sends vLLM 0.11 into the code for 0.6.3",
        {"verl/workers/rollout/vllm_rollout/__init__.py": OLD_GATE},
        {"vllm/__init__.py": "class LLM: ...\n"},
        {"vllm": "0.11.0"},
        ["breaks-import name-missing vllm.gone", "degrades gate-wrong vllm==0.11.0"],
    ),
]


@pytest.mark.parametrize(
    ("sources", "targets", "pins", "expected"), [case[1:] for case in KNOWN], ids=[case[0] for case in KNOWN]
)
def test_known_answers(
    sources: Mapping[str, str], targets: Mapping[str, str], pins: dict[str, str], expected: list[str]
) -> None:
    assert lines(report_of(sources, targets, pins)) == expected
