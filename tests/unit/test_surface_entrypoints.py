"""The data file of the surface tier, and what is said of one that does not fit."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.errors import DataError
from matrix.surface import entrypoints
from matrix.surface.execution.syntax import Condition

RELEASES = [
    Version(text) for text in ("0.2", "0.3.0.post1", "0.4.1", "0.5.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.1")
]


@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_entry_points_of_every_release(version: Version) -> None:
    profile = entrypoints.load(version)
    names = [entry.name for entry in profile.entries]
    assert len(names) == len(set(names))
    assert {"verl", "ppo", "rollout-gate", "vllm-rollout", "model-patches"} <= set(names)
    assert {name for entry in profile.entries for name in entry.needed_by} <= set(names)
    rules = {rule.name for rule in profile.features}
    loose = {"async-rollout", "engine-workers", "fsdp-engine"}
    assert {entry.feature for entry in profile.entries} <= rules | loose
    assert any(entry.core for entry in profile.entries)


def test_the_rollout_of_every_release_is_core() -> None:
    for version in RELEASES:
        core = {entry.name for entry in entrypoints.load(version).entries if entry.core}
        assert ("vllm-server" in core) is (version >= Version("0.7"))


FEATURES = [
    ("verl/utils/qat/vllm_patch.py", "apply", "qat"),
    ("verl/utils/vllm/vllm_fp8_utils.py", "f", "fp8"),
    ("verl/workers/rollout/vllm_rollout/utils.py", "W.load_lora", "lora"),
    ("verl/workers/rollout/vllm_rollout/vllm_async_server.py", "S.launch_server", "rollout"),
    ("verl/workers/rollout/vllm_rollout/vllm_async_server.py", "S.abort_all_requests", "partial-rollout"),
    ("verl/workers/rollout/sglang_rollout/x.py", "f", "sglang"),
    ("verl/workers/rollout/replica.py", "_load_trtllm", "trtllm"),
    ("verl/workers/megatron_workers.py", "f", "megatron"),
    ("verl/models/transformers/qwen2_vl.py", "f", "vlm"),
    ("verl/trainer/sft_trainer.py", "f", "sft"),
    ("verl/trainer/main_ppo.py", "main", "training"),
    ("verl/experimental/agent_loop/agent_loop.py", "f", "agent-loop"),
    ("other/x.py", "f", ""),
    ("verl/workers/rollout/vllm_rollout/fire_vllm_rollout.py", "f", "fire-sampling"),
]
OLDER = [
    ("verl/workers/rollout/vllm_rollout/vllm_async_server.py", "S.launch_server", "async-rollout"),
    ("verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py", "vLLMAsyncRollout.init_worker", "async-rollout"),
    ("verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py", "vLLMRollout.__init__", "rollout"),
]


@pytest.mark.parametrize(("path", "scope", "feature"), OLDER)
def test_features_of_older_releases(path: str, scope: str, feature: str) -> None:
    assert entrypoints.load(Version("0.6.1")).feature(path, scope) == feature


def test_the_server_is_on_the_default_path_since_it_is_the_default() -> None:
    server = "verl.workers.rollout.vllm_rollout.vllm_async_server"
    seen = [entrypoints.load(Version(v)).on_default_path(server, "vLLMHttpServer.generate") for v in ("0.6.1", "0.7.0")]
    assert seen == [False, True]


def test_what_nothing_of_a_release_uses_is_no_entry_point() -> None:
    names = {text: [entry.name for entry in entrypoints.load(Version(text)).entries] for text in ("0.5.0", "0.6.0")}
    assert [text for text, found in names.items() if "fsdp-vllm-sharding" in found] == ["0.5.0"]


@pytest.mark.parametrize(("path", "scope", "feature"), FEATURES)
def test_features(path: str, scope: str, feature: str) -> None:
    assert entrypoints.load(Version("0.9.1")).feature(path, scope) == feature


def test_what_the_profile_answers() -> None:
    profile = entrypoints.load(Version("0.9.1"))
    assert profile.on_default_path("verl.trainer.main_ppo", "main")
    assert not profile.on_default_path("verl.trainer.main_ppo", "other")
    assert profile.cannot_run("sglang")
    assert not profile.cannot_run("lora")
    assert profile.is_factory("transformers.models.auto.tokenization_auto.AutoTokenizer")
    assert not profile.is_factory("vllm.LLM")
    assert "megatron" in entrypoints.absent_packages()
    assert re.fullmatch("sha256:[0-9a-f]{64}", entrypoints.digest())


CONDITIONS = [
    ("self._is_actor", True),
    ("not self._is_actor", False),
    ("self._is_actor or anything", True),
    ("self._is_actor and anything", None),
    ("lora_rank > 0 and anything", False),
    ("lora_rank > 0 or anything", None),
    ("self.config.lora_rank > 0", False),
    ("role == 'actor'", None),
    ("self.config.rollout.mode == 'async'", True),
]


@pytest.mark.parametrize(("text", "holds"), CONDITIONS)
def test_conditions_of_an_ordinary_run(text: str, holds: bool | None) -> None:
    condition = Condition(ast.parse(text, mode="eval").body)
    assert entrypoints.load(Version("0.9.1")).holds(condition) is holds


def test_conditions_of_some_releases() -> None:
    condition = Condition(ast.parse("self.async_rollout_mode", mode="eval").body)
    assert [entrypoints.load(Version(text)).holds(condition) for text in ("0.6.1", "0.7.0")] == [False, True]


ENTRY = '[[entry]]\nname = "a"\nmodule = "verl"\nfeature = "x"\ncore = true\n'
FAULTS = [
    ("schema = 2", "schema"),
    ("a = ", "Invalid value"),
    ("schema = 1\n[[entry]]\nname = 3", "entry[0].name"),
    (f'schema = 1\n{ENTRY}verl = "newer"', "entry[0].verl"),
    (f'schema = 1\n{ENTRY}needed_by = "ppo"', "entry[0].needed_by"),
    ("schema = 1\n[[feature]]\npaths = []", "feature[0].name"),
    ('schema = 1\n[[feature]]\nname = "x"', "feature[0]"),
    ('schema = 1\n[[feature]]\nname = "x"\npaths = ["a"]\nneeds = "y"', "feature[0].needs"),
    ('schema = 1\n[[default_path]]\nfunctions = ["no colon"]', "default_path[0].functions"),
    ('schema = 1\n[[default_path]]\nfunctions = "a:b"', "default_path[0].functions"),
    ('schema = 1\n[[default_path]]\nfunctions = ["a:b"]\nverl = "newer"', "default_path[0].verl"),
    ('schema = 1\n[[feature]]\nname = "x"\npaths = ["a"]\nverl = "newer"', "feature[0].verl"),
    ('schema = 1\n[[ordinary]]\nholds = true\ntexts = "a"', "ordinary[0].texts"),
    ('schema = 1\n[[ordinary]]\nholds = 1\ntexts = ["a"]', "ordinary[0].holds"),
    ('schema = 1\n[[ordinary]]\nholds = true\ntexts = ["a"]\nverl = "newer"', "ordinary[0].verl"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "verl.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(says)):
        entrypoints.load(Version("0.9.1"), path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        entrypoints.load(Version("0.9.1"), tmp_path / "gone.toml")


def test_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "verl.toml"
    path.write_text(f'schema = 1\n{ENTRY}verl = "<1"\n')
    assert [entry.name for entry in entrypoints.load(Version("0.9"), path).entries] == ["a"]
    assert entrypoints.load(Version("1.0"), path).entries == ()
    assert not entrypoints.load(Version("1.0"), path).is_factory("x")
    condition = Condition(ast.parse("self._is_actor", mode="eval").body)
    assert entrypoints.load(Version("1.0"), path).holds(condition) is None
