"""Target against target, on trees of a few lines: what vLLM's own modules take of transformers, what comes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.errors import DataError
from matrix.finding import Effect, Finding, Kind
from matrix.surface import entrypoints
from matrix.surface.answer import ImportFailure, Presence
from matrix.surface.factstore import FactStore
from matrix.surface.importing import read_imports, stored_attributes
from matrix.surface.report import check_surface
from matrix.surface.world import World
from matrix.tier import Outcome
from tests.unit.source_trees import archives, world_of
from tests.unit.surface_case import MAIN, SERVER, body, lines, report_of, subject_of

OTHER = {
    "transformers/__init__.py": "class There: ...\nfrom . import models",
    "transformers/models/__init__.py": "class Old: ...",
    "torch/__init__.py": "def compile(f): return f",
    "torch/nn.py": "class Module: ...",
}


def other(module: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the other packages, and vLLM with `vllm.m` and whatever else is given (`a/b` is `vllm/a/b.py`)."""
    rest = {f"vllm/{name}.py": text for name, text in (more or {}).items()}
    return {**OTHER, "vllm/__init__.py": "", "vllm/m.py": module, **rest}


def test_the_whole_failure() -> None:
    world = world_of(other("import vllm.a", {"a": "\n\nfrom transformers.models import Gone"}))
    found = world.import_failure("vllm.m")
    assert found is not None
    assert (found.kind, found.symbol, found.exception) == (
        Kind.NAME_MISSING,
        "transformers.models.Gone",
        "ImportError",
    )
    assert str(found.site) == "vllm/a.py:3"
    assert found.chain == ("vllm.m", "vllm.a")


GONE = "from transformers import Gone"
ALONE = [
    # What is taken at module level, without a condition.
    ("from transformers import There", ""),
    ("from transformers import Gone", "transformers.Gone"),
    ("import transformers.gone", "transformers.gone"),
    ("from transformers.gone import X", "transformers.gone"),
    ("import transformers.models as tm\nclass A(tm.Gone): ...", "transformers.models.Gone"),
    ("import transformers\nclass A(transformers.There): ...", ""),
    ("import transformers\nclass A:\n    b = transformers.Gone()", "transformers.Gone"),
    ("from transformers import models\nX = models.Gone", "transformers.models.Gone"),
    ("import torch\n@torch.gone\ndef f(): ...", "torch.gone"),
    ("import torch\ndef f(a=torch.gone): ...", "torch.gone"),
    ("import torch\ndef f(*, a=torch.gone): ...", "torch.gone"),
    ("import torch.nn as nn\nclass A(nn.Module, metaclass=nn.Gone): ...", "torch.nn.Gone"),
    ("from transformers import *", ""),
    ("import elsewhere\nfrom elsewhere import Gone", ""),
    # What is not executed, or may not be.
    ("def f():\n    from transformers import Gone", ""),
    ("import torch\ndef f(a: torch.gone) -> torch.gone: ...", ""),
    ("import torch\nX = lambda: torch.gone", ""),
    ("import torch\nX = [torch.gone for _ in ()]", ""),
    ("import torch\nX = True and torch.gone", ""),
    ("import torch\nX = torch.gone and True", "torch.gone"),
    ("import torch\nX = torch.gone if Y else 1", ""),
    ("import torch\nX = 1 if torch.gone else 2", "torch.gone"),
    ("import torch\nX = torch.compile < torch.gone", "torch.gone"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from transformers import Gone", ""),
    ("import typing\nif not typing.TYPE_CHECKING:\n    from transformers import Gone", "transformers.Gone"),
    ("if TYPE_CHECKING:\n    pass\nelse:\n    from transformers import Gone", "transformers.Gone"),
    ("if TYPE_CHECKING and x():\n    from transformers import Gone", ""),
    ("if x() and y():\n    from transformers import Gone", ""),
    ("if False:\n    from transformers import Gone", ""),
    ("if is_available():\n    from transformers import Gone", ""),
    ("if version('transformers') < '5':\n    from transformers import Gone", ""),
    ("for _ in range(3):\n    from transformers import Gone", ""),
    # A name that more than the import binds is not known to be the module.
    ("import torch\nif x:\n    torch = None\nY = torch.gone", ""),
    ("try:\n    import torch\nexcept ImportError:\n    torch = None\nY = torch.gone", ""),
    ("import torch\nfor torch in (): ...\nY = torch.gone", ""),
    ("import torch\nwith x() as torch: ...\nY = torch.gone", ""),
    ("import torch\ndef torch(): ...\nY = torch.gone", ""),
    # Handlers.
    ("try:\n    from transformers import Gone\nexcept ImportError:\n    Gone = None", ""),
    ("try:\n    import transformers.gone\nexcept ModuleNotFoundError:\n    pass", ""),
    ("try:\n    from transformers import Gone\nexcept (ValueError, Exception):\n    pass", ""),
    ("try:\n    from transformers import Gone\nexcept:\n    pass", ""),
    ("try:\n    from transformers import Gone\nexcept ValueError:\n    pass", "transformers.Gone"),
    ("try:\n    from transformers import Gone\nexcept ImportError:\n    raise", "transformers.Gone"),
    (
        "try:\n    from transformers import Gone\nexcept ImportError as e:\n    raise RuntimeError() from e",
        "transformers.Gone",
    ),
    (
        "try:\n    from transformers import Gone\nexcept ImportError:\n    from transformers.models import Gone",
        "transformers.models.Gone",
    ),
    ("try:\n    from transformers import Gone\nexcept ImportError:\n    from transformers.models import Old", ""),
    ("try:\n    from transformers import There\nexcept ImportError:\n    from transformers import Gone", ""),
    (
        "try:\n    import torch\nexcept ImportError:\n    pass\nelse:\n    from transformers import Gone",
        "transformers.Gone",
    ),
    ("try:\n    import elsewhere\nexcept ImportError:\n    pass\nelse:\n    from transformers import Gone", ""),
    ("try:\n    pass\nfinally:\n    from transformers import Gone", "transformers.Gone"),
    ("with suppress(ImportError):\n    from transformers import Gone", ""),
    ("with contextlib.suppress(ValueError):\n    from transformers import Gone", "transformers.Gone"),
    ("with anything():\n    from transformers import Gone", ""),
    ("import torch\nwith torch.gone():\n    pass", "torch.gone"),
    ("raise ImportError('on purpose')\nfrom transformers import Gone", ""),
    # vLLM may put the name there itself.
    ("import transformers\ntransformers.Gone = 1\nfrom transformers import Gone", ""),
    ("import transformers\ndef f():\n    setattr(transformers, 'Gone', 1)\nfrom transformers import Gone", ""),
    ("def f(:", ""),
]


@pytest.mark.parametrize(("module", "symbol"), ALONE)
def test_one_module(module: str, symbol: str) -> None:
    found = world_of(other(module)).import_failure("vllm.m")
    assert (found.symbol if found is not None else "") == symbol


FOLLOWED: list[tuple[str, dict[str, str], str, str]] = [
    ("from vllm.a import X", {"a": GONE}, "", "vllm.m vllm.a"),
    ("from .a import X", {"a": GONE}, "", "vllm.m vllm.a"),
    ("from . import a", {"a": GONE}, "", "vllm.m vllm.a"),
    ("from . import a", {"a": "from .b import *", "b": GONE}, "", "vllm.m vllm.a vllm.b"),
    ("import vllm.p.a", {"p/__init__": GONE, "p/a": ""}, "", "vllm.m vllm.p"),
    ("import vllm.p.a", {"p/__init__": "", "p/a": "from ..b import X", "b": GONE}, "", "vllm.m vllm.p.a vllm.b"),
    # A circle: whoever is imported first, all of it fails.
    ("import vllm.a", {"a": f"import vllm.m\nimport vllm.b\n{GONE}", "b": "import vllm.a"}, "", "vllm.m vllm.a"),
    # The name is bound by the package, so that the submodule of that name is not imported.
    ("from vllm.p import a", {"p/__init__": "a = 1", "p/a": GONE}, "", ""),
    ("from vllm.p import a", {"p/__init__": "", "p/a": GONE}, "", "vllm.m vllm.p.a"),
    ("try:\n    import vllm.a\nexcept ImportError:\n    pass", {"a": GONE}, "", ""),
    ("try:\n    import vllm.a\nexcept ImportError:\n    from transformers import Worse", {"a": GONE}, "", "vllm.m"),
    ("try:\n    import vllm.a\nexcept ImportError:\n    raise ValueError", {"a": GONE}, "", "vllm.m vllm.a"),
    ("import vllm.gone\nimport vllm.a.b", {"a": ""}, "", ""),
    ("import vllm.a\nX = vllm.a.Y", {"a": ""}, "", ""),
]


@pytest.mark.parametrize(("module", "more", "name", "chain"), FOLLOWED)
def test_imports_are_followed(module: str, more: dict[str, str], name: str, chain: str) -> None:
    found = world_of(other(module, more)).import_failure("vllm.m", name)
    assert " ".join(found.chain if found is not None else ()) == chain


LAZY = """
    TABLE = {"LLM": ".llm:LLM", "Params": ".params:Params"}
    if typing.TYPE_CHECKING:
        from vllm.llm import LLM
    else:
        def __getattr__(name):
            if name in TABLE:
                module, attribute = TABLE[name].split(":")
                return getattr(import_module(module, __package__), attribute)
            raise AttributeError(name)
"""


def test_a_lazy_name_imports_its_module() -> None:
    members = {
        **OTHER,
        "vllm/__init__.py": LAZY,
        "vllm/llm.py": f"{GONE}\nclass LLM: ...",
        "vllm/params.py": "class Params: ...",
    }
    world = world_of(members)
    assert world.import_failure("vllm") is None
    assert world.import_failure("vllm", "Params") is None
    found = world.import_failure("vllm", "LLM")
    assert found is not None
    assert found.chain == ("vllm.llm",)


def test_what_is_read_is_kept(tmp_path: Path) -> None:
    def fails(world: World) -> bool:
        with world:
            return world.import_failure("vllm.m") is not None

    members = other("import vllm.a", {"a": GONE})
    store = FactStore(tmp_path)
    assert fails(world_of(members, facts=store))
    again = world_of(members, facts=store)
    assert fails(again)
    assert [package.archive.bytes_read for package in again._packages.values()] == [0, 0, 0]


def test_another_package_is_not_followed() -> None:
    assert world_of(OTHER).import_failure("nowhere.m") is None


STORED = [
    ("a.b = 1", {"b"}),
    ("  a.b.c = 1", {"c"}),
    ("self.b = 1\ncls.c = 2", set()),
    ("a.b == 1\na.b(c=1)", set()),
    ("setattr(a.b, 'c', 1)", {"c"}),
]


@pytest.mark.parametrize(("text", "names"), STORED)
def test_stored_attributes(text: str, names: set[str]) -> None:
    assert stored_attributes(text.encode()) == names


def test_a_relative_import_of_a_package_is_of_itself() -> None:
    assert read_imports(b"from .a import b", "p.q", package=True).data["imports"] == [["from", 1, "p.q.a", ["b"]]]
    assert read_imports(b"from ..a import b", "p.q.r", package=False).data["imports"] == [["from", 1, "p.a", ["b"]]]


# ------------------------------------------------------------------------------------------------ what comes of it
MODELS = "vllm/model_executor/models/"
ROLLOUT = "verl/workers/rollout/vllm_rollout/__init__.py"
ENGINE = {**OTHER, "vllm/__init__.py": "", "vllm/engine.py": f"{GONE}\nclass Engine: ..."}
ATTEMPT = "try:\n    from vllm.engine import Engine\nexcept ImportError:\n    Engine = None"


def inside(verl: Mapping[str, str] | str, targets: Mapping[str, str], release: str = "0.9.1") -> list[Finding]:
    return [f for f in report_of(verl, targets, release=release).findings if f.used_at.path.startswith("vllm/")]


EFFECTS: list[tuple[Mapping[str, str], Effect | None, str, tuple[str, ...]]] = [
    ({SERVER: "from vllm.engine import Engine"}, Effect.BREAKS_IMPORT, "rollout", ("ppo", "vllm-server")),
    ({SERVER: "import vllm.engine"}, Effect.BREAKS_IMPORT, "rollout", ("ppo", "vllm-server")),
    ({SERVER: ATTEMPT}, Effect.GUARDED, "rollout", ("vllm-server",)),
    ({MAIN: body("from vllm.engine import Engine")}, Effect.BREAKS_FEATURE, "training", ("ppo",)),
    ({SERVER: "import vllm"}, None, "", ()),
    ({SERVER: "import transformers\ntransformers.Gone = 1\nimport vllm.engine"}, None, "", ()),
]


@pytest.mark.parametrize(("verl", "effect", "feature", "points"), EFFECTS)
def test_effects(verl: Mapping[str, str], effect: Effect | None, feature: str, points: tuple[str, ...]) -> None:
    found = inside(verl, ENGINE)
    assert [item.effect for item in found] == ([effect] if effect is not None else [])
    for item in found:
        assert (item.feature, item.target, item.symbol) == (feature, "transformers", "transformers.Gone")
        assert set(points) <= set(item.entry_points)
        assert str(item.used_at) == "vllm/engine.py:1"


def test_the_cause_comes_before_what_verl_tries_instead() -> None:
    attempt = "try:\n    from vllm.engine import Engine\nexcept ImportError:\n    from vllm.old_engine import Engine"
    report = report_of({SERVER: attempt, ROLLOUT: "import vllm.engine"}, ENGINE, release="0.9.1")
    symbols = [item.symbol for item in report.findings if item.effect is Effect.BREAKS_IMPORT]
    assert symbols == ["transformers.Gone", "vllm.old_engine"]
    assert "cannot import Gone from transformers" in report.reason


def test_the_message_names_the_chain() -> None:
    (found,) = inside({SERVER: "\nimport vllm.a"}, {**ENGINE, "vllm/a.py": "import vllm.engine"})
    assert found.message == (
        f"cannot import Gone from transformers; needed by vllm/engine.py:1 when {SERVER}:2 imports vllm.a → vllm.engine"
    )


def test_a_long_chain_is_told_by_its_ends() -> None:
    more = {"vllm/a.py": "import vllm.b", "vllm/b.py": "import vllm.c", "vllm/c.py": "import vllm.d"}
    (found,) = inside({SERVER: "import vllm.a"}, {**ENGINE, **more, "vllm/d.py": "import vllm.engine"})
    assert found.message.endswith("imports vllm.a → vllm.b → vllm.c → … → vllm.engine")


def test_each_feature_is_told_once_with_all_its_entry_points() -> None:
    verl = {SERVER: "import vllm.engine", ROLLOUT: "from vllm import engine", MAIN: body("import vllm.engine")}
    found = inside(verl, ENGINE)
    assert [(item.effect, item.feature) for item in found] == [
        (Effect.BREAKS_IMPORT, "rollout"),
        (Effect.BREAKS_FEATURE, "training"),
    ]
    assert {"ppo", "vllm-rollout", "vllm-server"} <= set(found[0].entry_points)


class Asked(World):
    """A world that remembers which modules it was asked about."""

    asked: list[str]

    def module(self, dotted: str) -> Presence:
        self.asked.append(dotted)
        return super().module(dotted)

    def import_failure(self, module: str, name: str = "") -> ImportFailure | None:
        raise AssertionError(module)


def test_one_target_is_asked_nothing_more() -> None:
    alone = {path: text for path, text in ENGINE.items() if path.startswith("vllm/")}
    alone |= {f"{MODELS}qwen2.py": GONE}
    world = Asked(archives(alone), {"vllm": Version("1.0")})
    world.asked = []
    report = check_surface(subject_of({SERVER: "import vllm.engine", ROLLOUT: ""}), world, {"vllm": Version("1.0")})
    assert (report.findings, world.asked) == ((), ["vllm.engine"])


ROOTS = {**OTHER, "vllm/__init__.py": "", "vllm/model_executor/__init__.py": "", f"{MODELS}__init__.py": ""}
LOADED: list[tuple[dict[str, str], list[str], Outcome]] = [
    ({"qwen2": "", "pixtral": ""}, [], Outcome.OK),
    ({"qwen2": "", "pixtral": GONE}, ["PixtralForConditionalGeneration"], Outcome.DEGRADED),
    ({"qwen2": GONE, "qwen3": "", "llama": ""}, ["Qwen2ForCausalLM"], Outcome.DEGRADED),
    (
        {"qwen2": GONE, "qwen3": "import vllm.model_executor.models.qwen2"},
        ["Qwen2ForCausalLM", "Qwen3ForCausalLM"],
        Outcome.BROKEN,
    ),
    ({"qwen2": "", "llama": GONE, "mistral": ""}, ["LlamaForCausalLM"], Outcome.DEGRADED),
    ({"qwen2": "", "llama": GONE}, ["LlamaForCausalLM", "MistralForCausalLM"], Outcome.DEGRADED),
]


@pytest.mark.parametrize(("models", "architectures", "outcome"), LOADED)
def test_models(models: dict[str, str], architectures: list[str], outcome: Outcome) -> None:
    targets = {**ROOTS, **{f"{MODELS}{name}.py": text for name, text in models.items()}}
    report = report_of({ROLLOUT: ""}, targets)
    assert sorted(item.feature for item in report.findings) == [f"model:{name}" for name in architectures]
    assert report.outcome is outcome
    for item in report.findings:
        assert item.effect is Effect.BREAKS_FEATURE
        assert "failed to be inspected" in item.message


def test_models_are_not_told_again_when_the_engine_itself_fails() -> None:
    targets = {**ROOTS, "vllm/__init__.py": GONE, f"{MODELS}qwen2.py": ""}
    assert lines(report_of({ROLLOUT: "import vllm"}, targets)) == ["breaks-import name-missing transformers.Gone"]


def test_models_that_a_release_does_not_know() -> None:
    assert lines(report_of({MAIN: ""}, {**OTHER, "vllm/__init__.py": ""})) == []


FAULTS = [
    ("architecture = 3", "model[0]"),
    ('architecture = "A"\nmodules = []', "model[0].modules"),
    ('architecture = "A"\nmodules = "vllm.a"', "model[0].modules"),
    ('architecture = "A"\nmodules = ["vllm.a"]\nusual = 1', "model[0]"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS)
def test_a_data_file_that_does_not_fit(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "verl.toml"
    path.write_text(f"schema = 1\n[[model]]\n{text}\n")
    with pytest.raises(DataError, match=re.escape(says)):
        entrypoints.load(Version("0.9.1"), path)


def test_the_models_of_the_data_file() -> None:
    models = entrypoints.load(Version("0.9.1")).models
    assert [model.architecture for model in models if model.usual] == [
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "LlamaForCausalLM",
    ]
    assert len({model.architecture for model in models}) == len(models)
