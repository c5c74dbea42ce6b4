from __future__ import annotations

import pytest

from matrix.surface.world import World
from tests.unit.source_trees import archives, world_of

TREE = {
    "v/__init__.py": "",
    "v/lora/__init__.py": "",
    "v/lora/lora_model.py": "class LoRAModel: pass",
    "v/lora/worker_manager.py": "def make_lora(): pass",
    "v/engine/__init__.py": "",
    "v/engine/models.py": "class Unrelated: pass",
    "v/fused/__init__.py": "from .runner import FusedMoE",
    "v/fused/layer.py": "def other(): pass\ndef fused_experts_impl(): pass\nunused = 1",
    "v/fused/runner.py": "class FusedMoE: pass",
    "v/utils/__init__.py": "",
    "v/utils/network.py": "def get_port(): pass",
    "v/far/__init__.py": "",
    "v/far/away/__init__.py": "",
    "v/far/away/place.py": "LIMIT: int = 3\nasync def serve(): pass\n    # class Commented",
}


@pytest.mark.parametrize(
    ("dotted", "best"),
    [
        ("v.lora.models", "v.lora.lora_model"),
        ("v.lora.models.LoRAModel", "v.lora.lora_model.LoRAModel"),
        ("v.fused.layer.FusedMoE", "v.fused.runner.FusedMoE"),
        # A member of a class is where its class is, and nowhere else.
        ("v.fused.layer.FusedMoE.forward_native", "v.fused.runner.FusedMoE"),
        ("v.fused.gone.NoSuchClass.get_port", None),
        # One word of three in common is another thing.
        ("v.lora.lora_weight_patch", None),
        ("v.lora.lora_modle2", None),
        ("v.fused.layer.LIMIT", "v.far.away.place.LIMIT"),
        ("v.fused.layer.serve", "v.far.away.place.serve"),
        ("v.fused.layer.fused_experts", "v.fused.layer.fused_experts_impl"),
        ("v.utils.get_port", "v.utils.network.get_port"),
        ("v.away.place", "v.far.away.place"),
        ("v.fused.layer.Commented", None),
        ("v.fused.layer.zzz", None),
        ("v.lora", None),
        ("elsewhere.x", None),
        ("v", None),
    ],
)
def test_new_homes(dotted: str, best: str | None) -> None:
    found = world_of(TREE).moved(dotted)
    assert (found[0] if found else None) == best


def test_for_a_module_only_its_package_is_read() -> None:
    made = archives({"v/__init__.py": "", "v/a/models.py": "", "v/c/__init__.py": "", "v/c/other.py": ""})
    assert World(made, {}).moved("v.c.models") == ("v.a.models",)
    assert {member.rpartition("/")[0] for member in made["v"].read_members} <= {"v/c", "v"}


def test_the_search_stops_at_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.surface.moved._BATCH", 2)
    monkeypatch.setattr("matrix.surface.moved._BUDGET", 10)
    made = archives(TREE)
    assert World(made, {}).moved("v.fused.layer.LIMIT") == ()
    assert len(made["v"].read_members) < len(TREE)


def test_an_answer_is_found_once() -> None:
    made = archives(TREE)
    world = World(made, {})
    first = world.moved("v.lora.models.LoRAModel")
    read = list(made["v"].read_members)
    assert world.moved("v.lora.models.LoRAModel") == first
    assert made["v"].read_members == read
