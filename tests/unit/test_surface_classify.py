"""What comes of a misfit: entry points, features, guards around callers, uncertainty, messages."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from matrix.finding import Effect, Finding, Kind
from matrix.surface.report import SurfaceReport
from tests.unit.surface_case import MAIN, SERVER, body, line, lines, report_of

VLLM = {
    "vllm/__init__.py": "class LLM:\n    def go(self): ...\n",
    "vllm/there.py": "class Moved: ...\n",
    "vllm/layer.py": "",
}
MISSING = "from vllm.layer import Moved\n"
INITS = {"verl/utils/__init__.py": "", "verl/utils/vllm/__init__.py": ""}


def only(report: SurfaceReport) -> Finding:
    (found,) = [item for item in report.findings if item.kind is not Kind.PACKAGE_ABSENT]
    return found


def test_an_import_that_fails_names_every_entry_point_that_executes_it() -> None:
    sources = {
        **INITS,
        MAIN: "import verl.helper\n",
        "verl/helper.py": MISSING,
        SERVER: "import verl.helper\n",
        "verl/trainer/sft_trainer.py": "",
    }
    report = report_of(sources, VLLM)
    found = only(report)
    assert found.effect is Effect.BREAKS_IMPORT
    assert found.entry_points == ("ppo", "vllm-server")
    assert (report.entry_points["ppo"], report.entry_points["sft"]) == ("breaks", "ok")
    assert report.outcome == "broken"
    assert report.reason.startswith("ppo, vllm-server cannot be imported: cannot import Moved from vllm.layer")


def test_the_rollout_that_ppo_loads_by_name_is_a_break_of_ppo() -> None:
    found = only(report_of({SERVER: MISSING}, VLLM))
    assert (found.entry_points, found.feature) == (("ppo", "vllm-server"), "rollout")


def test_a_package_whose_parent_fails_fails_too() -> None:
    report = report_of({"verl/workers/__init__.py": MISSING, SERVER: ""}, VLLM)
    assert report.entry_points["vllm-server"] == "breaks"


def test_where_it_went_is_looked_up() -> None:
    found = only(report_of(MISSING, VLLM))
    assert found.moved_to == ("vllm.there.Moved",)
    assert found.found_at is not None
    assert (found.found_at.path, found.found_at.line) == ("vllm/there.py", 1)
    assert "now vllm.there.Moved" in found.message


def test_both_errors_are_named_where_verl_shows_another_one() -> None:
    source = (
        f"try:\n    {MISSING}except ImportError as e:\n    raise ImportError('FP8 quantization not available') from e\n"
    )
    found = only(report_of(source, VLLM))
    assert found.effect is Effect.BREAKS_IMPORT
    assert "cannot import Moved from vllm.layer" in found.message
    assert "verl shows it as ImportError('FP8 quantization not available')" in found.message


REACHED: list[tuple[str, Mapping[str, str], list[str], str]] = [
    (
        "lazily",
        {MAIN: body("import verl.fp8_part"), "verl/fp8_part.py": MISSING},
        ["breaks-feature name-missing vllm.layer.Moved"],
        "degraded",
    ),
    (
        "guarded import",
        {MAIN: "try:\n    import verl.part\nexcept ImportError:\n    pass\n", "verl/part.py": MISSING},
        ["guarded name-missing vllm.layer.Moved"],
        "ok",
    ),
    (
        "guarded and lazy",
        {
            MAIN: "try:\n    import verl.part\nexcept ImportError:\n    pass\n" + body("import verl.part"),
            "verl/part.py": MISSING,
        },
        ["breaks-feature name-missing vllm.layer.Moved"],
        "degraded",
    ),
    (
        "named by a string",
        {MAIN: "REGISTRY = {'vllm': 'verl.part.Rollout'}\n", "verl/part.py": MISSING + "class Rollout: ...\n"},
        ["breaks-feature name-missing vllm.layer.Moved"],
        "degraded",
    ),
    ("never imported", {MAIN: "", "verl/part.py": MISSING}, [], "ok"),
    (
        "called at import",
        {MAIN: f"def setup():\n    {MISSING}setup()\n"},
        ["breaks-import name-missing vllm.layer.Moved"],
        "broken",
    ),
    ("own module missing", {MAIN: "import verl.gone\n"}, ["breaks-import own-module-missing verl.gone"], "broken"),
    (
        "own module missing later",
        {MAIN: body("import verl.gone")},
        ["breaks-feature own-module-missing verl.gone"],
        "broken",
    ),
    (
        "own name missing",
        {MAIN: "from verl.part import gone\n", "verl/part.py": "x = 1\n"},
        ["breaks-import name-missing verl.part.gone"],
        "broken",
    ),
    (
        "own name unbound",
        {MAIN: "from verl.part import x\n", "verl/part.py": "if False:\n    x = 1\n"},
        ["breaks-import name-missing verl.part.x"],
        "broken",
    ),
    (
        "own name may be bound",
        {MAIN: "from verl.part import x\n", "verl/part.py": "import os\nif os.cpu_count():\n    x = 1\n"},
        [],
        "ok",
    ),
    ("lazy own names", {MAIN: "from verl.part import x\n", "verl/part.py": "def __getattr__(name): ...\n"}, [], "ok"),
    (
        "star import",
        {MAIN: "from verl.part import *\nfrom vllm.layer import Moved as Other\n", "verl/part.py": "x = 1\n"},
        ["breaks-import name-missing vllm.layer.Moved"],
        "broken",
    ),
    (
        "cycle",
        {MAIN: "import verl.a\n", "verl/a.py": "import verl.b\nx = 1\n", "verl/b.py": "from verl.a import x\n"},
        [],
        "ok",
    ),
]


@pytest.mark.parametrize(
    ("sources", "expected", "outcome"), [case[1:] for case in REACHED], ids=[case[0] for case in REACHED]
)
def test_how_a_module_is_reached(sources: Mapping[str, str], expected: list[str], outcome: str) -> None:
    report = report_of({**INITS, **sources}, VLLM)
    assert lines(report) == expected
    assert report.outcome == outcome


CALLERS: list[tuple[str, str, list[str], str]] = [
    ("nobody refers to it", f"def part():\n    {MISSING}", ["breaks-feature? name-missing vllm.layer.Moved"], ""),
    ("called", f"def part():\n    {MISSING}" + body("part()"), ["breaks-feature name-missing vllm.layer.Moved"], ""),
    (
        "called when",
        f"def part():\n    {MISSING}" + body("if config.fast:\n    part()"),
        ["breaks-feature name-missing vllm.layer.Moved"],
        "config.fast",
    ),
    (
        "every caller handles it",
        f"def part():\n    {MISSING}" + body("try:\n    part()\nexcept ImportError:\n    pass"),
        ["guarded name-missing vllm.layer.Moved"],
        "every caller handles it",
    ),
    (
        "one does not",
        f"def part():\n    {MISSING}def other():\n    part()\n"
        + body("other()\ntry:\n    part()\nexcept ImportError:\n    pass"),
        ["breaks-feature name-missing vllm.layer.Moved"],
        "",
    ),
    (
        "by a version that it is not",
        "import vllm\nfrom packaging import version\n"
        f"def old():\n    {MISSING}" + body("if version.parse(vllm.__version__) < version.parse('0.5'):\n    old()"),
        ["breaks-feature? name-missing vllm.layer.Moved"],
        "",
    ),
    ("registered", f"@register('x')\ndef part():\n    {MISSING}", ["breaks-feature name-missing vllm.layer.Moved"], ""),
    (
        "put into a table",
        f"def part():\n    {MISSING}TABLE = [part]\n",
        ["breaks-feature name-missing vllm.layer.Moved"],
        "",
    ),
    (
        "method",
        f"class Worker:\n    def part(self):\n        {MISSING}" + body("Worker()"),
        ["breaks-feature name-missing vllm.layer.Moved"],
        "",
    ),
    (
        "method of an unused class",
        f"class Worker:\n    def part(self):\n        {MISSING}",
        ["breaks-feature? name-missing vllm.layer.Moved"],
        "",
    ),
]


@pytest.mark.parametrize(
    ("source", "expected", "guard"), [case[1:] for case in CALLERS], ids=[case[0] for case in CALLERS]
)
def test_who_calls_the_function(source: str, expected: list[str], guard: str) -> None:
    report = report_of(source, VLLM)
    assert lines(report) == expected
    assert [item.guard for item in report.findings] == [guard]


def test_methods_that_an_ordinary_run_calls_are_on_the_default_path() -> None:
    source = f"""
        class vLLMHttpServer:
            def launch_server(self):
                self.build()
                if self.config.lora:
                    self.other()
            def build(self):
                {MISSING}
            def other(self):
                from vllm.layer import Second
            def unrelated(self):
                from vllm.layer import Third
    """
    found = {item.symbol.rpartition(".")[2]: item for item in report_of({SERVER: source}, VLLM).findings}
    assert {name: item.default_path for name, item in found.items()} == {"Moved": True, "Second": False, "Third": False}
    assert found["Second"].guard == "self.config.lora"


HF = "config.model_type"
ORDINARY: list[tuple[str, str, bool, str]] = [
    ("nothing around it", MISSING, True, "training"),
    ("behind a check that raises", f"if config.a > config.b:\n    raise ValueError('no')\n{MISSING}", True, "training"),
    (
        "behind a check that raises either way but one",
        f"if config.a:\n    if config.b:\n        raise ValueError\n    else:\n        raise KeyError\n{MISSING}",
        True,
        "training",
    ),
    (
        "behind a check whose error is handled",
        f"try:\n    if config.a:\n        raise ValueError\n    {MISSING}except ValueError:\n    pass\n",
        False,
        "training",
    ),
    ("behind a return", f"if config.a:\n    return\n{MISSING}", False, "training"),
    (
        "behind a check of what is installed",
        f"if not config.available:\n    raise ValueError\n{MISSING}",
        False,
        "training",
    ),
    ("what an ordinary run is", f"if config.free_cache_engine:\n    {MISSING}", True, "training"),
    ("one of what it is", f"if config.a or config.free_cache_engine:\n    {MISSING}", True, "training"),
    ("that and more", f"if config.a and config.free_cache_engine:\n    {MISSING}", False, "training"),
    ("what it is not", f"if lora_rank > 0:\n    pass\nelse:\n    {MISSING}", True, "training"),
    ("unless it is what it is not", f"if not lora_rank > 0 and not is_lora:\n    {MISSING}", True, "training"),
    ("a model", f"if model.{HF} == 'kimi_vl':\n    {MISSING}", False, "model:kimi_vl"),
    ("models", f"if hf_{HF} in ['a', 'b']:\n    {MISSING}", False, "model:a/b"),
    ("not that model", f"if model.{HF} == 'kimi_vl':\n    pass\nelse:\n    {MISSING}", True, "training"),
    ("not one of these", f"if model.{HF} in ['qwen3_5']:\n    pass\nelse:\n    {MISSING}", True, "training"),
    ("a type of verl's own", f"if self.model_{HF} == 'value_model':\n    {MISSING}", False, "training"),
]


@pytest.mark.parametrize(
    ("source", "default", "feature"), [case[1:] for case in ORDINARY], ids=[case[0] for case in ORDINARY]
)
def test_what_an_ordinary_run_meets(source: str, default: bool, feature: str) -> None:
    found = only(report_of(body(source), VLLM))
    assert (found.effect, found.default_path, found.feature) == (Effect.BREAKS_FEATURE, default, feature)


def test_a_function_called_for_one_model_belongs_to_that_model() -> None:
    source = body(f"if model.{HF} == 'kimi_vl':\n    patch()\n") + f"def patch():\n    {MISSING}"
    found = only(report_of(source, VLLM))
    assert (found.feature, found.guard) == ("model:kimi_vl", f"model.{HF} == 'kimi_vl'")


def test_a_registry_calls_each_of_its_functions_under_the_condition_of_its_key() -> None:
    source = f"def other(): ...\ndef patch():\n    {MISSING}PATCHES = {{'kimi_vl': patch, 'other': other}}\n" + body(
        f"PATCHES[model.{HF}]()\n"
    )
    found = only(report_of(source, VLLM))
    assert (found.feature, found.guard, found.default_path) == ("model:kimi_vl", f"model.{HF} == 'kimi_vl'", False)


def test_a_registry_of_model_classes() -> None:
    source = f"def load():\n    {MISSING}LOADERS = {{'DeepseekV2ForCausalLM': load}}\n" + body("LOADERS[arch]()\n")
    assert only(report_of(source, VLLM)).feature == "model:DeepseekV2ForCausalLM"


CONFIG = """
from dataclasses import dataclass
@dataclass
class Config:
    on: bool = True
    off: bool = False
    plain = False
"""


@pytest.mark.parametrize(("name", "reached", "default"), [("on", 1, True), ("off", 1, False), ("plain", 0, False)])
def test_a_default_of_a_dataclass_is_what_an_ordinary_run_has_and_no_constant(
    name: str, reached: int, default: bool
) -> None:
    source = CONFIG + f"def main(config: Config):\n    if config.{name}:\n        {MISSING}"
    found = report_of(source, VLLM).findings
    assert [(item.default_path, item.guard) for item in found] == [(default, f"config.{name}")] * reached


CASES = [
    ("case Kind.A:", "config.kind == Kind.A"),
    ("case Kind.A | Kind.B:", "config.kind in (Kind.A, Kind.B)"),
    ("case Kind.B:\n        pass\n    case _:", "config.kind not in (Kind.B,)"),
    ("case [first]:", "config.kind"),
]


@pytest.mark.parametrize(("case", "guard"), CASES)
def test_a_case_is_a_condition(case: str, guard: str) -> None:
    source = f"match config.kind:\n    {case}\n        {MISSING}"
    found = only(report_of(body(source), VLLM))
    assert (found.guard, found.default_path) == (guard, False)


def test_an_error_raised_again_as_it_was_is_not_told_twice() -> None:
    source = f"try:\n    {MISSING}except Exception as e:\n    raise e\n"
    assert "verl shows it" not in only(report_of(source, VLLM)).message


BEHIND = [
    ("lora_rank > 0", "lora"),
    ("config.rollout.name == 'vllm' and config.model.get('lora_rank', 0) > 0", "lora"),
    ("not lora_rank > 0", "training"),
    ("self.nnodes > 1", "multi-node"),
    ("not self.node_rank == 0", "training"),
    ("config.other", "training"),
]


@pytest.mark.parametrize(("condition", "feature"), BEHIND)
def test_a_feature_is_known_by_the_condition_that_turns_it_on(condition: str, feature: str) -> None:
    assert only(report_of(body(f"if {condition}:\n    {MISSING}"), VLLM)).feature == feature


def test_a_function_called_under_an_ordinary_condition_is_on_the_default_path() -> None:
    source = body("if self._is_actor or self._is_rollout:\n    build()\n") + f"def build():\n    {MISSING}"
    assert only(report_of(source, VLLM)).default_path


ABSENT: list[tuple[str, str, list[str]]] = [
    ("unguarded", "import megatron.core\n", ["breaks-feature? package-absent megatron.core"]),
    (
        "guarded",
        "try:\n    import sglang\nexcept ImportError:\n    sglang = None\n",
        ["guarded? package-absent sglang"],
    ),
    ("unknown packages are taken for installed", "import peft\n", []),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in ABSENT], ids=[case[0] for case in ABSENT])
def test_an_optional_package_that_is_absent_is_no_break(source: str, expected: list[str]) -> None:
    report = report_of(source, VLLM)
    assert [line(item) for item in report.findings] == expected
    assert report.outcome == "ok"


def test_what_needs_an_absent_package_decides_nothing() -> None:
    source = "import megatron.core\n" + body(MISSING)
    report = report_of(source, VLLM)
    assert lines(report) == ["breaks-feature? name-missing vllm.layer.Moved"]
    assert report.entry_points["ppo"] == "absent"
    assert report.outcome == "ok"


def test_findings_round_trip_and_name_their_place() -> None:
    report = report_of("class A:\n    x = 1\n    def f(self):\n        import vllm.gone\nA()\n", VLLM)
    found = only(report)
    assert (found.used_at.path, found.used_at.line, found.used_at.scope) == (MAIN, 4, "A.f")
    assert Finding.from_json(found.to_json()) == found
    assert report.counts == {"breaks-feature": 1}


def test_annotations_are_executed_only_where_python_does() -> None:
    source = "import vllm\ndef f(x: vllm.Gone): ...\n"
    assert lines(report_of(source, VLLM)) == ["breaks-import attribute-missing vllm.Gone"]
    assert lines(report_of(f"from __future__ import annotations\n{source}", VLLM)) == []
    assert lines(report_of(source.replace("vllm.Gone", "'vllm.Gone'"), VLLM)) == []


EXECUTED = [
    ("decorator", "import vllm\n@vllm.gone\ndef f(): ...\n"),
    ("default", "import vllm\ndef f(x=vllm.gone): ...\n"),
    ("base class", "import vllm\nclass A(vllm.gone): ...\n"),
    ("class body", "import vllm\nclass A:\n    x = vllm.gone\n"),
    ("comprehension", "import vllm\nx = [vllm.gone for i in range(3)]\n"),
    ("f-string", "import vllm\nx = f'{vllm.gone}'\n"),
    ("subscript", "import vllm\nx = {}\nx[vllm.gone] = 1\n"),
    ("annotation of a variable", "import vllm\nx: vllm.gone = 1\n"),
    ("call argument", "import vllm\nprint(vllm.gone)\n"),
    ("augmented", "import vllm\nx = 1\nx += vllm.gone\n"),
    ("nested tuple", "import vllm\n(a, b), c = (1, 2), vllm.gone\n"),
    ("alias", "import vllm as v\nx = v.gone\n"),
    ("slice", "import vllm\nx = [1][vllm.gone:]\n"),
]


@pytest.mark.parametrize("source", [case[1] for case in EXECUTED], ids=[case[0] for case in EXECUTED])
def test_what_runs_at_import(source: str) -> None:
    assert lines(report_of(source, VLLM)) == ["breaks-import attribute-missing vllm.gone"]


def test_what_only_looks_alike_is_worded_as_a_guess() -> None:
    found = only(
        report_of("from vllm.layer import fused_experts_imp", {**VLLM, "vllm/layer.py": "fused_experts_impl = 1"})
    )
    assert found.moved_to == ()
    assert "perhaps vllm.layer.fused_experts_impl" in found.message
    assert "now " not in found.message
