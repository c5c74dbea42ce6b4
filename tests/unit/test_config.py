"""Hydra keys: what a release has and reads, what became of the others; hydra really composes the small releases."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.axes
from matrix.cli import config as command
from matrix.cli import wiring as parts
from matrix.config.answer import ConfigAnswer, Fate, Override, answer
from matrix.config.release import ConfigRelease
from matrix.config.wiring import Says, about, load_wiring
from matrix.errors import DataError, UnknownReleaseError, UsageError
from tests.unit.cli_stack import record_axes, said
from tests.unit.fakes import FakeIndex, FakeRelease

PPO = """\
defaults:
  - model_engine: dp
  - critic@critic: ${model_engine}_critic
  - _self_
trainer:
  nodes: 1
  ratio: 0.5
  resume: false
  unread: null
  logger: [console]
  extra: {}
  engine_kwargs:
    vllm:
      deep: null
"""
CRITIC = "_target_: verl.workers.config.CriticConfig\nlr: 1e-5\nsp: 1\nfsdp:\n  offload: false\n"
CODE = """\
def main(config):
    config.trainer.nodes = 2
    print(config.trainer.nodes, config["ratio"], config.trainer.get("resume"), config.critic.lr)
    start(**config.trainer.engine_kwargs.vllm, **config.trainer.val_kwargs)
    return OmegaConf.select(config, "critic.fsdp.offload"), getattr(config, "hidden"), config.sp, f()()
"""
CLASSES = """\
class Base:
    lr: float = 1.0
    hidden: int = 2

class CriticConfig(Base, Other):
    sp: int = 1
    fsdp: dict = None
    NAMES = ("x",)
"""
NEW = {
    "verl/__init__.py": "",
    "verl/main.py": CODE,
    "verl/broken.py": "def (",
    "verl/workers/config/critic.py": CLASSES,
    "verl/trainer/config/ppo_trainer.yaml": PPO,
    "verl/trainer/config/odd.yaml": "defaults:\n  - nowhere\n",
    "verl/trainer/config/model_engine/dp.yaml": "# @package _global_\nmodel_engine: dp\n",
    "verl/trainer/config/model_engine/mc.yaml": "# @package _global_\nmodel_engine: mc\n",
    "verl/trainer/config/critic/dp_critic.yaml": CRITIC,
    "verl/trainer/config/critic/mc_critic.yaml": "lr: 1e-6\n",
}
OLD = {"verl/__init__.py": "", "verl/trainer/config/ppo_trainer.yaml": "trainer:\n  nodes: 1\n  old_name: 3\n"}
RELEASES = {
    "0.8.0": FakeRelease(files=OLD),
    "0.9.0": FakeRelease(files=NEW),
    "0.9.1": FakeRelease(files={"verl/__init__.py": ""}),
    "0.9.2": FakeRelease(sdist_only=True),
}
WIRING = """\
schema = 1

[[key]]
key = "trainer.nodes"
releases = ">=0.9"
says = "moved"
to = "trainer.ratio"
why = "it moved"
source = "x"

[[key]]
key = "critic.model.*"
releases = "all"
says = "renamed"
to = "critic.fsdp"
why = "it has another name"
source = "x"
"""


@pytest.fixture
def index() -> FakeIndex:
    return FakeIndex({"verl": RELEASES})


def _asked(index: FakeIndex, folder: Path, *words: str, wiring: str = "schema = 1\n") -> ConfigAnswer:
    path = folder / "wiring.toml"
    path.write_text(wiring, encoding="utf-8")
    versions = [Version(text) for text in RELEASES]
    return answer(
        Version("0.9.0"),
        words,
        lambda version: ConfigRelease(index, folder / "cache", version),
        releases=versions,
        wiring=load_wiring(path),
    )


FATES = [
    ("trainer.nodes=2", Fate.READ, True, ""),
    ("trainer.nodes", Fate.READ, True, ""),
    ("trainer.ratio=1", Fate.READ, True, ""),
    ("trainer.resume=True", Fate.READ, True, ""),
    ("critic.fsdp.offload=true", Fate.READ, True, ""),
    ("critic.fsdp", Fate.INERT, False, ""),
    ("trainer.unread=3", Fate.INERT, False, ""),
    ("trainer.nodes=abc", Fate.READ, False, "the default is 1; hydra takes `abc`"),
    ("trainer.nodes=${trainer.ratio}", Fate.READ, True, ""),
    ("trainer.nodes=null", Fate.READ, True, ""),
    ("trainer.resume=$RESUME", Fate.READ, True, ""),
    ("trainer.nodes=$((2*N))", Fate.READ, True, ""),
    ("trainer.engine_kwargs.vllm.deep=1", Fate.READ, True, ""),
    ("+trainer.engine_kwargs.vllm.anything=1", Fate.ADDED, True, ""),
    ("trainer.engine_kwargs.vllm.anything=1", Fate.UNKNOWN, False, "write +trainer.engine_kwargs.vllm.anything=1"),
    ("+trainer.other_kwargs.anything=1", Fate.ADDED, False, "no code reads"),
    ("+trainer.val_kwargs.anything=1", Fate.ADDED, False, "no code reads"),
    ("trainer.resume=maybe", Fate.READ, False, "is not true or false"),
    ("~trainer.nodes", Fate.READ, True, ""),
    ("+trainer.nodes=2", Fate.READ, False, "write trainer.nodes=2"),
    ("critic.hidden=1", Fate.UNKNOWN, False, "write +critic.hidden=1"),
    ("+critic.hidden=1", Fate.ADDED, True, ""),
    ("+critic.sq=1", Fate.ADDED, False, "verl.workers.config.CriticConfig has no field sq"),
    ("+trainer.resume_x=1", Fate.ADDED, False, "no code reads a field of that name"),
    ("trainer.old_name=1", Fate.UNKNOWN, False, ""),
    ("model_engine=mc", Fate.GROUP, True, ""),
    ("critic@critic=mc_critic", Fate.GROUP, True, ""),
]


@pytest.mark.parametrize(("word", "fate", "fine", "wrong"), FATES, ids=[word for word, *_ in FATES])
def test_a_key_has_a_fate(index: FakeIndex, tmp_path: Path, word: str, fate: Fate, fine: bool, wrong: str) -> None:
    (item,) = _asked(index, tmp_path, word).keys
    assert (item.fate, item.is_fine) == (fate, fine)
    assert wrong in item.wrong
    assert bool(item.wrong) == bool(wrong)


def test_the_releases_that_have_a_key_and_what_may_be_meant_are_named(index: FakeIndex, tmp_path: Path) -> None:
    found = _asked(index, tmp_path, "trainer.old_name=1", "trainer.nodess=1", "other.offload=1")
    assert found.keys[0].had == (Version("0.8.0"),)
    assert found.keys[1].instead == ("trainer.nodes",)
    assert found.keys[2].instead == ("critic.fsdp.offload",)
    assert "Could not override 'trainer.old_name'" in found.refusal
    assert not found.is_fine


def test_another_engine_has_other_keys(index: FakeIndex, tmp_path: Path) -> None:
    assert _asked(index, tmp_path, "critic.sp=2").is_fine
    found = _asked(index, tmp_path, "critic.sp=2", "model_engine=mc")
    assert found.keys[0].fate is Fate.UNKNOWN
    assert _asked(index, tmp_path, "model_engine=none").refusal


def test_places_that_name_more_of_the_key_come_first(index: FakeIndex, tmp_path: Path) -> None:
    (item,) = _asked(index, tmp_path, "trainer.nodes=2").keys
    assert [str(place) for place in item.reads] == ["verl/main.py:3 config.trainer.nodes"]


def test_what_is_known_beyond_the_name_decides(index: FakeIndex, tmp_path: Path) -> None:
    (item,) = _asked(index, tmp_path, "trainer.nodes=2", wiring=WIRING).keys
    assert (item.fate, item.is_fine, item.instead) == (Fate.READ, False, ("trainer.ratio",))
    (item,) = _asked(index, tmp_path, "critic.model.offload=true", wiring=WIRING).keys
    assert item.instead == ("critic.fsdp.offload",)


def test_what_was_read_is_not_read_again(index: FakeIndex, tmp_path: Path) -> None:
    first = ConfigRelease(index, tmp_path, Version("0.9.0"))
    assert first.defaults().keys["trainer.nodes"] == 1
    assert first.fields()["CriticConfig"] == ("fsdp", "hidden", "lr", "sp")
    again = ConfigRelease(index, tmp_path, Version("0.9.0"))
    assert dict(again.defaults().keys) == dict(first.defaults().keys)
    assert again.fields() == first.fields()
    assert set(again.reads()) == set(first.reads())
    assert len(again.reads()) > 3


def test_a_configuration_that_hydra_refuses_is_not_kept(index: FakeIndex, tmp_path: Path) -> None:
    release = ConfigRelease(index, tmp_path, Version("0.9.0"))
    assert release.names() == ("odd", "ppo_trainer")
    assert "nowhere" in release.defaults("odd").refusal
    with pytest.raises(UsageError, match="has no configuration `sft`"):
        release.defaults("sft")
    with pytest.raises(UnknownReleaseError):
        ConfigRelease(index, tmp_path, Version("0.9.2"))


@pytest.mark.parametrize("word", ["", "=1", "a b=1", ".a=1", "a.=1", "++", "x" * 300 + " "])
def test_a_word_that_is_no_key_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not a key of hydra"):
        Override.parse(word)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('says = "moved"', 'says = "gone"'), "key[0].says: `gone` is none of"),
        (('releases = ">=0.9"', 'releases = "0.9 on"'), "key[0].releases: `0.9 on` is not a range"),
        (('source = "x"\n\n', "\n"), "key[0].source: is missing"),
    ],
)
def test_an_entry_that_is_not_whole_is_refused(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = tmp_path / "wiring.toml"
    path.write_text(WIRING.replace(*change, 1), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_wiring(path)
    assert says in str(caught.value)


def test_the_shipped_entries_are_about_their_releases() -> None:
    wiring = load_wiring()
    (wire,) = about("critic.ulysses_sequence_parallel_size", Version("0.9.1"), wiring)
    assert (wire.says, wire.to) == (Says.MOVED, "critic.fsdp.ulysses_sequence_parallel_size")
    assert about("critic.ulysses_sequence_parallel_size", Version("0.7.1"), wiring) == ()
    assert {wire.says for wire in about("critic.model.fsdp_config.x", Version("0.9.1"), wiring)} == {Says.RENAMED}


@pytest.fixture
def site(index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    record_axes(monkeypatch, tmp_path / "axes.toml", {**_OTHERS, "verl": ("0.8.0", "0.9.0")})
    monkeypatch.setattr(command, "load_axes", matrix.axes.load_axes)
    monkeypatch.setattr(parts, "open_index", lambda args, home: index)
    (tmp_path / "run.sh").write_text(
        "# a comment\nset -x\npython3 -m verl.trainer.main_ppo \\\n    trainer.nodes=2 critic.lr=1 \\\n    x $@\n",
        encoding="utf-8",
    )
    (tmp_path / "empty.sh").write_text("echo hello\n", encoding="utf-8")
    (tmp_path / "bad.sh").write_text("echo 'hello\n", encoding="utf-8")
    return tmp_path


_OTHERS = dict.fromkeys(("vllm", "torch", "transformers", "flash-attn", "ray", "tensordict"), ("1.0",))


def test_the_command_prints_an_answer_a_key(site: Path) -> None:
    heard = said("config", "verl==0.9.0", "trainer.nodes=2", "trainer.old_name=1", "trainer.unread=1", "+trainer.q=1",
                 "model_engine=dp", "--home", str(site))  # fmt: skip
    assert heard.code == 1
    assert heard.out.splitlines() == [
        "ok   trainer.nodes=2: exists (default 1); 1 place reads a field of that name",
        "    read at verl/main.py:3 config.trainer.nodes",
        "bad  trainer.old_name=1: does not exist in verl 0.9.0",
        "    other releases that have it: 0.8.0",
        "dead trainer.unread=1: exists (default null), and no code of verl 0.9.0 reads a field of that name",
        "bad  +trainer.q=1: is no key of the files, added with +",
        "    no code reads a field of that name",
        "ok   model_engine=dp: chooses a file of the configuration",
        "hydra refuses the command line:",
        "    Could not override 'trainer.old_name'.",
        "    To append to your config use +trainer.old_name=1",
        "verl 0.9.0, ppo_trainer: 2 of 5 keys do something.",
    ]


def test_the_command_reads_scripts_and_prints_json(site: Path) -> None:
    heard = said("config", "verl==0.9.0", f"@{site / 'run.sh'}", "--json", "--home", str(site))
    assert heard.code == 0
    assert [item["override"] for item in json.loads(heard.out)["keys"]] == ["trainer.nodes=2", "critic.lr=1"]


@pytest.mark.parametrize(
    ("option", "words", "config"),
    [
        ("--config-name='ppo_trainer.yaml'", [], "ppo_trainer"),
        ("--config-name odd", [], "odd"),
        ("--config-name odd", ["--config-name", "ppo_trainer"], "ppo_trainer"),
        ("--config-name=$NAME", [], "ppo_trainer"),
        ("--config-path=/x --config-name=mine", [], "ppo_trainer"),
        ("", [], "ppo_trainer"),
    ],
)
def test_a_script_names_its_configuration(site: Path, option: str, words: list[str], config: str) -> None:
    (site / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo \\\r\n  {option} \\\r\n  trainer.nodes=2\r\n")
    heard = said("config", "verl==0.9.0", f"@{site / 'run.sh'}", *words, "--home", str(site))
    if config == "odd":
        assert (heard.code, "nowhere" in heard.out + heard.err) != (0, False)
        return
    assert heard.out.splitlines()[-1] == f"verl 0.9.0, {config}: 1 of 1 key does something."
    assert ("--config-path" in heard.err) == ("--config-path" in option)


FAKE = """\
#!{python}
import json, sys
found = json.load(open(sys.argv[3]))["asked"]
stage = "done" if "trainer.nodes=2" in found else "validate"
stage = "compose" if "trainer.nodes=3" in found else stage
error = {{"done": "", "compose": "ImportError: no verl", "validate": "ValueError: two\\nlines"}}[stage]
if "trainer.nodes=4" in found:
    sys.exit("it broke")
print("noise")
answer = {{"stage": stage, "error": error, "resolved": {{}}, "effective": {{"critic.engine.sp": 1}}}}
print("DRY-RUN " + json.dumps({{"asked": answer}}))
print("more noise")
"""


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("trainer.nodes=2", 0, "dry run by FAKE: valid\n    critic.engine.sp = 1"),
        ("trainer.nodes=1", 1, "dry run by FAKE: stopped at validate\n    ValueError: two\n    lines"),
        ("trainer.nodes=3", 6, "FAKE cannot compose verl's configuration.\nImportError: no verl"),
        ("trainer.nodes=4", 6, "The dry run ended with 1.\nit broke"),
    ],
)
def test_a_configuration_is_run_dry_in_an_environment(site: Path, word: str, code: int, says: str) -> None:
    fake = site / "python"
    fake.write_text(FAKE.format(python=sys.executable), encoding="utf-8")
    fake.chmod(0o755)
    heard = said("config", "verl==0.9.0", word, "--env", str(fake), "--home", str(site))
    assert heard.code == code
    assert says.replace("FAKE", str(fake)) in heard.out + heard.err
    if code < 2:
        heard = said("config", "verl==0.9.0", word, "--env", str(fake), "--json", "--home", str(site))
        assert json.loads(heard.out)["dry_run"]["effective"] == {"critic.engine.sp": 1}


def test_an_interpreter_that_is_not_there_is_refused(site: Path) -> None:
    heard = said("config", "verl==0.9.0", "trainer.nodes=2", "--env", str(site / "none"), "--home", str(site))
    assert (heard.code, "cannot be run: No such file" in heard.err) == (6, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["trainer.nodes=2"], 2, "config takes one verl==VERSION; 0 were given"),
        (["verl==0.9.0"], 2, "No key is named"),
        (["verl==0.9.0", "@HOME/none.sh"], 2, "cannot be read as a shell script"),
        (["verl==0.9.0", "@HOME/bad.sh"], 2, "cannot be read as a shell script"),
        (["verl==0.9.0", "@HOME"], 2, "cannot be read as a shell script: Is a directory."),
        (["verl==0.9.0", "@/dev/zero"], 2, "more than 1048576 bytes"),
        (["verl==0.9.0", "@HOME/empty.sh"], 2, "sets no key of hydra"),
        (["verl==0.9.0", "trainer.nodes=2", "--config-name", "sft"], 2, "has no configuration `sft`"),
        (["verl==0.7.7", "trainer.nodes=2"], 4, "verl 0.7.7 does not exist"),
    ],
)
def test_words_that_make_no_sense_are_refused(site: Path, words: list[str], code: int, says: str) -> None:
    heard = said("config", *(word.replace("HOME", str(site)) for word in words), "--home", str(site))
    assert heard.code == code
    assert says in heard.err
