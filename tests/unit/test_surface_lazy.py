from __future__ import annotations

import pytest

from matrix.surface.world import World
from tests.unit.source_trees import archives, world_of

LAZY_END = "sys.modules[__name__] = _LazyModule(__name__, globals()['__file__'], {structure}, module_spec=__spec__"
DERIVED = """
    from typing import TYPE_CHECKING
    from ...utils import _LazyModule
    from ...utils.import_utils import define_import_structure
    if TYPE_CHECKING:
        from .modeling_{0} import *
    else:
        import sys
        _file = globals()["__file__"]
        sys.modules[__name__] = _LazyModule(__name__, _file, define_import_structure(_file), module_spec=__spec__)
"""
ROOT = """
    import importlib, sys, types
    from pathlib import Path
    from typing import TYPE_CHECKING
    from .utils import _LazyModule, is_torch_available, OptionalDependencyNotAvailable, logging
    from .utils.import_utils import define_import_structure
    __version__ = "5.9.0"
    logger = logging.get_logger(__name__)
    _import_structure = {
        "cache": ["Cache", "StaticCache"],
        "utils": ["logging"],
        "emptied": [],
        "generation": [],
    }
    try:
        if not is_torch_available():
            raise OptionalDependencyNotAvailable()
    except OptionalDependencyNotAvailable:
        from .utils import dummy_pt_objects
        _import_structure["utils.dummy_pt_objects"] = [n for n in dir(dummy_pt_objects) if not n.startswith("_")]
    else:
        _import_structure["generation"].extend(["Mixin"])
        _import_structure["generation"].append("Config")
        _import_structure["trainer"] = ["Trainer"]
        _import_structure.setdefault("late", []).append("Late")
        _import_structure.setdefault("backends", [])
        _import_structure["backends"] += ["Backend"]
        _import_structure.update({"updated": ["Updated"]})
    if TYPE_CHECKING:
        from .cache import Cache
        from .cache import Hidden
    else:
        _LEGACY_MODULE_ALIASES = {"old_cache": "cache"}
        _import_structure = {k: set(v) for k, v in _import_structure.items()}
        for _alias in _LEGACY_MODULE_ALIASES:
            _import_structure.setdefault(_alias, set())
        import_structure = define_import_structure(Path(__file__).parent / "models", prefix="models")
        import_structure[frozenset({})].update(_import_structure)
        sys.modules[__name__] = _LazyModule(
            __name__, globals()["__file__"], import_structure, module_spec=__spec__,
            extra_objects={"__version__": __version__},
        )
        def _create_module_alias(alias, target): ...
        _create_module_alias(f"{__name__}.older_cache", ".cache")
        for _proc_file in []:
            _create_module_alias(f"{__name__}.models.{_model}.{_module}_fast", _target)
"""
TREE = {
    "t/__init__.py": ROOT,
    "t/cache.py": "class Cache: pass\nclass StaticCache: pass\nclass Hidden: pass\nclass Kept: pass",
    "t/generation.py": "class Mixin: pass\nclass Config: pass",
    "t/trainer.py": "",
    "t/late.py": "class Late: pass",
    "t/backends.py": "class Backend: pass",
    "t/updated.py": "class Updated: pass",
    "t/utils/__init__.py": "from . import logging",
    "t/utils/logging.py": "",
    "t/utils/dummy_pt_objects.py": "class Mixin: pass\nclass OnlyDummy: pass\n_private = 1",
    "t/models/__init__.py": DERIVED.replace("{0}", "x"),
    "t/models/llama/__init__.py": DERIVED.replace("{0}", "llama"),
    "t/models/llama/modeling_llama.py": """
        __all__ = [
            "LlamaModel",
            "LlamaForCausalLM",
        ]
        class LlamaModel: pass
        class LlamaForCausalLM: pass
        class LlamaMLP: pass
    """,
    "t/models/llama/tokenization_llama.py": "__all__ = ['LlamaTokenizer']\nclass LlamaTokenizer: pass",
    "t/models/llama/convert_llama.py": "__all__ = ['NotExported']\nNotExported = 1",
    "t/models/vit/__init__.py": DERIVED.replace("{0}", "vit"),
    "t/models/vit/image_processing_vit.py": """
        @requires(backends=("vision",))
        @other
        class VitImageProcessor: pass
        __all__ = ["VitImageProcessor"]
    """,
    "t/models/odd_folder/__init__.py": DERIVED.replace("{0}", "odd"),
    "t/models/odd_folder/modeling_odd.py": "__all__ = ['Surprise']\nclass Surprise: pass",
    "t/models/auto/__init__.py": DERIVED.replace("{0}", "auto"),
    "t/models/auto/modeling_auto.py": "__all__ = ['AutoModel']\nclass AutoModel: pass",
}


@pytest.mark.parametrize(
    ("module", "name", "expected", "leads_to"),
    [
        ("t", "Cache", "present", "t.cache.Cache"),
        ("t", "logging", "present", "t.utils.logging"),
        ("t", "Mixin", "present", "t.generation.Mixin"),
        ("t", "Config", "present", "t.generation.Config"),
        ("t", "Late", "present", "t.late.Late"),
        ("t", "Backend", "present", "t.backends.Backend"),
        ("t", "Updated", "present", "t.updated.Updated"),
        ("t", "OnlyDummy", "present", None),
        ("t", "Trainer", "opaque", None),
        ("t", "Hidden", "missing", None),
        ("t", "nothing", "missing", None),
        ("t", "_objects", "opaque", None),
        ("t", "__dict__", "present", None),
        ("t", "cache", "present", "t.cache"),
        ("t", "models", "present", "t.models"),
        ("t", "old_cache", "present", "t.old_cache"),
        ("t", "LlamaModel", "present", "t.models.llama.modeling_llama.LlamaModel"),
        ("t", "LlamaMLP", "missing", None),
        ("t", "NotExported", "missing", None),
        ("t", "LlamaTokenizer", "present", "t.models.llama.tokenization_llama.LlamaTokenizer"),
        ("t", "LlamaTokenizerFast", "present", "t.models.llama.tokenization_llama.LlamaTokenizer"),
        ("t", "VitImageProcessorFast", "present", "t.models.vit.image_processing_vit.VitImageProcessor"),
        ("t", "GoneTokenizer", "opaque", None),
        ("t", "Surprise", "present", "t.models.odd_folder.modeling_odd.Surprise"),
        ("t", "AutoModel", "present", "t.models.auto.modeling_auto.AutoModel"),
        ("t", "AutoModelForVision2Seq", "missing", None),
        ("t.models.llama", "LlamaModel", "present", "t.models.llama.modeling_llama.LlamaModel"),
        ("t.models.llama", "LlamaMLP", "missing", None),
        ("t.models.llama", "modeling_llama", "present", "t.models.llama.modeling_llama"),
        ("t.models.llama.modeling_llama", "LlamaMLP", "present", "t.models.llama.modeling_llama.LlamaMLP"),
        ("t.old_cache", "Cache", "present", "t.cache.Cache"),
        ("t.older_cache", "Cache", "present", "t.cache.Cache"),
        ("t.old_cache", "KeptFast", "present", "t.cache.Kept"),
        ("t.old_cache", "nothing", "missing", None),
        (
            "t.models.vit.image_processing_vit_fast",
            "VitImageProcessorFast",
            "present",
            "t.models.vit.image_processing_vit.VitImageProcessor",
        ),
        ("t.models.vit.image_processing_none_fast", "NoneImageProcessorFast", "missing", None),
    ],
)
def test_lazy_packages(module: str, name: str, expected: str, leads_to: str | None) -> None:
    answer = world_of(TREE, version="5.9.0").lookup(module, name)
    assert (answer.presence.value, answer.ref.dotted if answer.ref else None) == (expected, leads_to)


@pytest.mark.parametrize(
    ("dotted", "expected"),
    [
        ("t.old_cache", "present"),
        ("t.older_cache", "present"),
        ("t.models.vit.image_processing_vit_fast", "present"),
        ("t.models.vit.image_processing_none_fast", "missing"),
        ("t.nowhere", "missing"),
    ],
)
def test_renamed_modules(dotted: str, expected: str) -> None:
    assert world_of(TREE).module(dotted).value == expected


def test_an_old_release_has_no_stand_ins() -> None:
    answer = world_of(TREE, version="4.57.6").lookup("t", "LlamaTokenizerFast")
    assert answer.presence.value == "opaque"


def test_folders_named_like_the_wanted_name_are_read_first() -> None:
    made = archives(TREE)
    world = World(made, {})
    world.lookup("t", "LlamaModel")
    world.lookup("t", "AutoModelForVision2Seq")
    assert not [m for m in made["t"].read_members if "odd_folder" in m or "vit" in m]
    world.lookup("t", "nothing")
    assert "t/models/odd_folder/modeling_odd.py" in made["t"].read_members


@pytest.mark.parametrize(
    ("structure", "extra", "expected"),
    [
        ("{'a': ['X']}", "", "missing"),
        ("{'a': names()}", "", "missing"),
        ("{**other()}", "", "opaque"),
        ("build()", "", "opaque"),
        ("{'a': ['X']}", ", extra_objects=made()", "opaque"),
        ("{'a': ['X']}", ", explicit_import_shortcut={'a': ['thing']}", "present"),
    ],
)
def test_structures_that_are_not_seen_whole_are_opaque(structure: str, extra: str, expected: str) -> None:
    source = f"import sys\n_import_structure = {structure}\n{LAZY_END.format(structure='_import_structure')}{extra})"
    world = world_of({"q/__init__.py": source, "q/a.py": "X = 1"})
    assert world.lookup("q", "thing").presence.value == expected


GETATTR = {
    "direct": """
        def __getattr__(name):
            if name == 'yes': return 1
            raise AttributeError(name)
    """,
    "several": """
        def __getattr__(name):
            if name in ('yes', 'also'): return 1
            raise AttributeError(name)
    """,
    "negated": """
        def __getattr__(name):
            if name != 'yes': raise AttributeError(name)
            return 1
    """,
    "table": """
        T = {'yes': '.impl:Thing', 'also': 2}
        def __getattr__(name):
            if name in T:
                return load(T[name])
            else:
                raise AttributeError(name)
    """,
    "get_out": """
        T = ['yes']
        def __getattr__(name):
            if name not in T:
                raise AttributeError(name)
            return load()
    """,
    "same_name": """
        T = {'Thing': 'p.impl', 'yes': 1}
        def __getattr__(name):
            if name in T: return load(T[name])
            raise AttributeError
    """,
    "pairs": """
        T = {'yes': ('p.impl', 'Thing')}
        def __getattr__(n):
            if n in T: return load(T[n])
            raise AttributeError(n)
    """,
    "globals": """
        def __getattr__(name):
            if name == 'yes': return 1
            elif name in globals(): return globals()[name]
            else: raise AttributeError(name)
    """,
    "in_else": """
        import typing
        if typing.TYPE_CHECKING:
            from .impl import Thing as yes
        else:
            def __getattr__(name):
                if name == 'yes': return 1
                raise AttributeError(name)
    """,
    "updated": """
        T = {}
        T['yes'] = 1
        T.update({'also': 2})
        def __getattr__(name):
            if name in T: return 1
            raise AttributeError(name)
    """,
    "try_block": """
        T = {'yes': 1}
        def __getattr__(name):
            if name in T:
                try:
                    return T[name]
                except KeyError:
                    raise AttributeError from None
            raise AttributeError
    """,
    "both_tests": """
        T = {'yes': 1}
        def __getattr__(name):
            if name in T and ready(): return 1
            raise AttributeError
    """,
    "either_test": """
        def __getattr__(name):
            if name == 'yes' or name == 'also': return 1
            raise AttributeError
    """,
    "with_block": """
        def __getattr__(name):
            with lock:
                if name == 'yes': return 1
                raise AttributeError
    """,
}
OPEN = {
    "anything": """
        def __getattr__(name):
            return load(name)
    """,
    "falls_off": """
        def __getattr__(name):
            if name == 'yes': return 1
    """,
    "delegates": """
        import p.impl
        def __getattr__(name):
            return getattr(p.impl, name)
    """,
    "computed_table": """
        T = build()
        def __getattr__(name):
            if name in T: return 1
            raise AttributeError
    """,
    "unknown_test": """
        def __getattr__(name):
            if known(name): return 1
            raise AttributeError
    """,
    "either_unknown": """
        def __getattr__(name):
            if name == 'yes' or known(name): return 1
            raise AttributeError
    """,
    "imported": "from helper import __getattr__",
    "assigned": "__getattr__ = make()",
    "attached": """
        import lazy_loader
        __getattr__, __dir__, __all__ = lazy_loader.attach(__name__)
    """,
    "foreign_table": """
        from .impl import T
        def __getattr__(name):
            if name in T: return 1
            raise AttributeError
    """,
    "matched": """
        def __getattr__(name):
            match name:
                case 'yes': return 1
            raise AttributeError
    """,
    "looped": """
        def __getattr__(name):
            for m in load():
                return m
            raise AttributeError
    """,
}


@pytest.mark.parametrize("kind", sorted(GETATTR))
def test_a_closed_getattr_serves_what_it_tests_for(kind: str) -> None:
    world = world_of({"p/__init__.py": "", "p/m.py": GETATTR[kind], "p/impl.py": "class Thing: pass"})
    assert world.lookup("p.m", "yes").presence.value == "present"
    assert world.lookup("p.m", "no").presence.value == "missing"


@pytest.mark.parametrize("kind", sorted(OPEN))
def test_an_open_getattr_is_opaque(kind: str) -> None:
    world = world_of({"p/__init__.py": "", "p/m.py": OPEN[kind], "p/impl.py": "T = {}"})
    assert world.lookup("p.m", "no").presence.value == "opaque"


@pytest.mark.parametrize(
    ("source", "name", "leads_to"),
    [
        ("T = {'a': '.impl:Thing'}", "a", "p.impl.Thing"),
        ("T = {'Thing': '.impl'}", "Thing", "p.impl.Thing"),
        ("T = {'a': ('p.impl', 'Thing')}", "a", "p.impl.Thing"),
        ("T = {'a': 'p.sub.inner:Deep'}", "a", "p.sub.inner.Deep"),
        ("T = {'a': 'elsewhere:Thing'}", "a", None),
        ("T = {'a': lambda: 1}", "a", None),
    ],
)
def test_tables_lead_to_definitions(source: str, name: str, leads_to: str | None) -> None:
    fallback = "\ndef __getattr__(name):\n    if name in T: return load(T[name])\n    raise AttributeError"
    tree = {
        "p/__init__.py": source + fallback,
        "p/impl.py": "class Thing: pass",
        "p/sub/__init__.py": "",
        "p/sub/inner.py": "class Deep: pass",
    }
    answer = world_of(tree).lookup("p", name)
    assert (answer.presence.value, answer.ref.dotted if answer.ref else None) == ("present", leads_to)


def test_a_table_that_promises_what_is_not_there_is_no_proof() -> None:
    source = "T = {'a': '.impl:Gone'}\ndef __getattr__(name):\n    if name in T: return 1\n    raise AttributeError"
    assert world_of({"p/__init__.py": source, "p/impl.py": ""}).lookup("p", "a").presence.value == "opaque"
