"""The family `inspect`: "Model architectures [...] failed to be inspected", its true causes, and one that is none.

vLLM imports the class of a model in a child process. Whatever that import raises is logged, and the parent raises the
same sentence for all of it. Each probe asks the installed vLLM's own registry, so the sentence and the child's error
are both real.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
from kit import Cell, Ended, Trial, run_python
from kit.blame import judge_own
from kit.elf import unresolved

SUBJECTS = Path(__file__).parent / "subjects"
SENTENCE = re.compile(r"Model architectures \[.*\] failed to be inspected")
GENERAL = ("inspect-cause-hidden", "inspect-model-library-absent")
QWEN2, QWEN25VL, PIXTRAL = "Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration", "PixtralForConditionalGeneration"
_asked: dict[tuple[str, ...], Ended] = {}


def ask(cell: Cell, *words: str) -> Ended:
    """Return how the registry answered, asked once for each question; no stored answer is used (vLLM >= 0.11)."""
    if words not in _asked:
        subject, *rest = words
        room = cell.scratch / f"vllm-cache-{len(_asked)}"
        _asked[words] = run_python(
            str(SUBJECTS / f"{subject}.py"), *rest, timeout=280, env={"VLLM_CACHE_ROOT": str(room)}
        )
    return _asked[words]


def judged_with_sentence(trial: Trial, ended: Ended) -> None:
    """Judge, and where the failure is seen require that vLLM covered it with its sentence."""
    judge_own(trial, ended, general=GENERAL)
    if trial.seen == "reproduced":
        assert SENTENCE.search(ended.text), "the error came without vLLM's sentence"
        assert SENTENCE.search(ended.last_line), f"the last line is not the sentence but {ended.last_line!r}"


@pytest.mark.failure("inspect-aimv2-config-clash")
@pytest.mark.needs("vllm", "transformers")
@pytest.mark.limit(300)
def test_name_registered_twice(trial: Trial, cell: Cell) -> None:
    """Qwen2 cannot be inspected because vLLM registers `aimv2` and transformers already has it."""
    judged_with_sentence(trial, ask(cell, "inspect_model", "inspect", QWEN2))


@pytest.mark.failure("inspect-qwen25vl-imageprocessor-072")
@pytest.mark.needs("vllm>=0.7.2", "transformers")
@pytest.mark.limit(300)
def test_image_processor_that_never_was_released(trial: Trial, cell: Cell) -> None:
    """Qwen2.5-VL cannot be inspected by vLLM 0.7.2: it imports a class that no release of transformers has."""
    judged_with_sentence(trial, ask(cell, "inspect_model", "inspect", QWEN25VL))


@pytest.mark.failure("inspect-qwen25vl-transformers-448")
@pytest.mark.needs("vllm>=0.7.2", "transformers")
@pytest.mark.limit(300)
def test_model_that_transformers_does_not_have_yet(trial: Trial, cell: Cell) -> None:
    """Qwen2.5-VL cannot be inspected with a transformers from before the model, which vLLM's metadata allow."""
    judged_with_sentence(trial, ask(cell, "inspect_model", "inspect", QWEN25VL))


@pytest.mark.failure("inspect-pixtral-rotary-517")
@pytest.mark.needs("vllm>=0.6.4", "transformers")
@pytest.mark.limit(300)
def test_renamed_class(trial: Trial, cell: Cell) -> None:
    """Pixtral cannot be inspected once transformers has renamed its rotary embedding."""
    judged_with_sentence(trial, ask(cell, "inspect_model", "inspect", PIXTRAL))


@pytest.mark.failure("inspect-infer-schema-list")
@pytest.mark.needs("vllm", "torch", "transformers")
@pytest.mark.limit(300)
def test_custom_op_that_this_torch_refuses(trial: Trial, cell: Cell) -> None:
    """Qwen2 cannot be inspected because torch refuses the annotations of an operator that vLLM registers."""
    judged_with_sentence(trial, ask(cell, "inspect_model", "inspect", QWEN2))


@pytest.mark.failure("inspect-model-library-absent")
@pytest.mark.needs("vllm>=0.7.2", "transformers>=4.49")
@pytest.mark.limit(300)
def test_missing_library(trial: Trial, cell: Cell) -> None:
    """Qwen2.5-VL cannot be inspected where `einops` is not installed; the sentence does not name it."""
    judged_with_sentence(trial, ask(cell, "without_library", "einops", "inspect", QWEN25VL))


@pytest.mark.failure("inspect-cause-hidden")
@pytest.mark.needs("vllm>=0.7.2", "transformers>=4.49")
@pytest.mark.limit(300)
def test_cause_is_not_in_the_error(trial: Trial, cell: Cell) -> None:
    """What the caller gets holds nothing of the cause: it is in the log only, above the error."""
    ended = ask(cell, "without_library", "einops", "inspect", QWEN25VL)
    judge_own(trial, ended, general=("inspect-model-library-absent",))
    assert "einops" not in ended.last_line
    raised = ended.stderr.rpartition("Traceback (most recent call last)")[2]
    assert SENTENCE.search(raised)
    assert "einops" not in raised, "the cause is in the error itself, so nothing is hidden any more"


def unresolved_symbols() -> str | None:
    """Return the loader's words for vLLM's compiled library and the installed torch, None where all is resolved.

    Read from the symbols of both: loading it needs the driver's libcuda, which a machine without a GPU has not.
    """
    folders = []
    for package in ("vllm", "torch"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        folders.append(Path(next(iter(spec.submodule_search_locations))))
    extension = folders[0] / "_C.abi3.so"
    if not extension.is_file():
        pytest.skip("this vLLM has no _C.abi3.so: it is built on torch's stable interface")
    missing = sorted(unresolved(extension, sorted((folders[1] / "lib").glob("lib*.so*"))))
    return f"ImportError: {extension}: undefined symbol: {missing[0]}" if missing else None


def judge_symbols(trial: Trial) -> None:
    """Judge where the record speaks: on the torch it names, and on the one that vLLM asks for."""
    if trial.record.applies != "yes" and not fits("vllm", "torch"):
        pytest.skip("vLLM and torch do not fit here in another way than this record's")
    trial.judge(unresolved_symbols())


@pytest.mark.failure("inspect-extension-older-torch")
@pytest.mark.needs("vllm>=0.7.2", "torch")
def test_extension_against_an_older_torch(trial: Trial) -> None:
    """vLLM's compiled library wants names that a torch before 2.7 does not define."""
    judge_symbols(trial)


@pytest.mark.failure("inspect-extension-newer-torch")
@pytest.mark.needs("vllm>=0.7.2", "torch")
def test_extension_against_a_newer_torch(trial: Trial) -> None:
    """vLLM's compiled library wants names that a torch from 2.7 on does not define any more."""
    judge_symbols(trial)


@pytest.mark.failure("inspect-torchvision-nms")
@pytest.mark.needs("torch", "torchvision")
@pytest.mark.limit(300)
def test_torchvision_of_another_torch(trial: Trial) -> None:
    """torchvision cannot register its operators with a torch that it was not built for, and imports with its own."""
    ended = run_python("-c", "import torchvision", timeout=200)
    if fits("torchvision", "torch"):
        assert ended.code == 0, ended.last_line
        pytest.skip("torchvision is the one for this torch, and imports")
    judge_own(trial, ended, general=GENERAL)


def fits(package: str, other: str) -> bool:
    """Return whether the installed `other` is what the metadata of `package` ask for."""
    from packaging.requirements import Requirement

    asked = [Requirement(text) for text in importlib.metadata.requires(package) or ()]
    installed = importlib.metadata.version(other)
    return all(one.specifier.contains(installed, prereleases=True) for one in asked if one.name == other)


@pytest.mark.needs("vllm>=0.7.2", "transformers")
@pytest.mark.limit(300)
@pytest.mark.parametrize("architecture", [QWEN2, QWEN25VL])
@pytest.mark.parametrize("how", ["inspect", "resolve"])
def test_qwen_is_answered_unless_a_record_explains_it(cell: Cell, how: str, architecture: str) -> None:
    """The registry answers for Qwen2 and Qwen2.5-VL; where it does not, a record that this cell predicts says why."""
    ended = ask(cell, "inspect_model", how, architecture)
    if ended.fault is None:
        assert "answered: " in ended.stdout
        return
    why = [record.id for record in cell.records.values()
           if record.applies == "yes" and record.id not in GENERAL and record.matches(ended.fault)]  # fmt: skip
    assert why, f"no record explains it: {ended.last_line}"


@pytest.mark.needs("vllm>=0.7.2", "transformers")
@pytest.mark.limit(300)
def test_empty_architectures_give_another_error(cell: Cell) -> None:
    """A configuration without architectures, a cause that a guide names, never gives the sentence."""
    ended = ask(cell, "inspect_model", "inspect", "")
    assert ended.fault is not None
    assert not SENTENCE.search(ended.text)
    if not any(record.applies == "yes" and record.id not in GENERAL and record.matches(ended.fault)
               for record in cell.records.values()):  # fmt: skip
        assert re.search(r"Model architectures \[\] are not supported|No model architectures are specified", ended.text)


@pytest.mark.needs("verl")
def test_verl_has_no_model_inspector() -> None:
    """verl has no `model inspector`, the cause that a guide names: no such module, class, function or setting."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations)))
    named = re.compile(r"model[_ ]?inspector|inspect_model|failed to be inspected", re.IGNORECASE)
    files = [path for path in root.rglob("*") if path.suffix in {".py", ".yaml", ".yml", ".json"}]
    assert len(files) > 100, f"{root} is not verl's source"
    found = [str(path.relative_to(root)) for path in files if named.search(path.read_text("utf-8", "replace"))]
    assert not found
