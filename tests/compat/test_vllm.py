"""The family `vllm`: names that moved or left, signatures that changed, flags that are gone, verl's gate on versions.

What verl does with vLLM is taken from the installed verl's own statements and run against the installed vLLM.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit import Cell, Ended, Trial, run_python
from kit.blame import judge_own

SUBJECTS = Path(__file__).parent / "subjects"
ROLLOUT = "verl/workers/rollout/vllm_rollout"
_ran: dict[tuple[str, ...], Ended] = {}


def ran(subject: str, *words: str) -> Ended:
    """Return how a child script ended, run once for each set of words."""
    key = (subject, *words)
    if key not in _ran:
        _ran[key] = run_python(str(SUBJECTS / f"{subject}.py"), *words, timeout=200)
    return _ran[key]


def verl_imports(trial: Trial, file: str, pattern: str) -> None:
    """Judge the import statements that a file of verl has on the modules that the pattern matches."""
    ended = ran("vllm_verl", "imports", file, pattern)
    judge_own(trial, ended)
    if trial.seen == "absent" and ended.code == 0:
        assert re.search(r"^statements: \d+$", ended.stdout, re.MULTILINE)


@pytest.mark.failure("vllm-0111-utils-split")
@pytest.mark.needs("vllm", "verl")
@pytest.mark.limit(220)
def test_utils_became_a_package(trial: Trial) -> None:
    """verl's server of vLLM engines imports names from `vllm.utils` that have moved into modules of it."""
    verl_imports(trial, f"{ROLLOUT}/vllm_async_server.py", r"vllm\.utils")


@pytest.mark.failure("vllm-011-worker-modules-removed")
@pytest.mark.needs("vllm", "verl")
@pytest.mark.limit(220)
def test_modules_of_the_first_engine_are_gone(trial: Trial) -> None:
    """verl's rollout imports modules that went with vLLM's first engine."""
    file = f"{ROLLOUT}/vllm_rollout_spmd.py"
    verl_imports(trial, file, r"vllm\.worker\.worker_base|vllm\.model_executor\.sampling_metadata")


@pytest.mark.failure("vllm-013-lora-models-path")
@pytest.mark.needs("vllm", "verl")
@pytest.mark.limit(220)
def test_lora_models_renamed(trial: Trial) -> None:
    """verl imports LoRAModel from a module that has been renamed, for any rollout and not for LoRA alone."""
    files = ("verl/utils/vllm_utils.py", "verl/utils/vllm/utils.py")
    ended = [ran("vllm_verl", "imports", file, r"vllm\.lora\.(models|lora_model)") for file in files]
    judge_own(trial, next((one for one in ended if one.fault), ended[-1]))


@pytest.mark.failure("vllm-027-fusedmoe-renamed")
@pytest.mark.needs("vllm", "verl")
@pytest.mark.limit(220)
def test_fused_moe_renamed(trial: Trial) -> None:
    """verl's FP8 module, which every rollout imports, says that FP8 is not available: FusedMoE has another name."""
    verl_imports(trial, "verl/utils/vllm/vllm_fp8_utils.py", r"vllm\.model_executor\.layers\.fused_moe\.layer")


@pytest.mark.failure("vllm-lt-09-process-weights")
@pytest.mark.needs("vllm", "verl")
@pytest.mark.limit(220)
def test_process_weights_is_not_there_yet(trial: Trial) -> None:
    """verl's weight sync imports a function that vLLM has from 0.9 on."""
    verl_imports(trial, f"{ROLLOUT}/utils.py", r"vllm\.model_executor\.model_loader\.utils")


@pytest.mark.failure("vllm-gate-090-below-018")
@pytest.mark.needs("vllm", "verl>=0.4.0")
@pytest.mark.limit(220)
def test_gate_refuses(trial: Trial) -> None:
    """verl's own gate refuses the installed vLLM, and lets in the others."""
    judge_own(trial, ran("vllm_verl", "gate"))


@pytest.mark.failure("vllm-fp8-moe-kernel-signature")
@pytest.mark.needs("vllm>=0.14.0", "verl>=0.7.1")
@pytest.mark.limit(220)
def test_fp8_moe_kernel_takes_other_arguments(trial: Trial) -> None:
    """vLLM's FP8 MoE kernel does not take the arguments that verl gives it."""
    judge_own(trial, ran("vllm_verl", "kernel", "verl/utils/vllm/vllm_fp8_utils.py"))


@pytest.mark.failure("weight-transfer-non-contiguous")
@pytest.mark.tier("behave")
@pytest.mark.needs("verl>=0.7.1", "torch")
@pytest.mark.limit(220)
def test_transposed_weight_does_not_fit_the_bucket(trial: Trial) -> None:
    """verl's statement that fills the transfer buffer cannot take a weight that is a transposed view."""
    judge_own(trial, ran("vllm_verl", "transfer", f"{ROLLOUT}/bucketed_weight_transfer.py"))


@pytest.mark.failure("vllm-tokenizer-all-special-tokens-extended")
@pytest.mark.tier("behave")
@pytest.mark.needs("vllm", "transformers")
@pytest.mark.limit(220)
def test_tokenizer_attribute_gone(trial: Trial) -> None:
    """vLLM's cache of tokenizers reads an attribute that tokenizers do not have any more."""
    judge_own(trial, ran("vllm_tokenizer"))


@pytest.mark.failure("vllm-024-transformers-4")
@pytest.mark.needs("vllm", "transformers")
@pytest.mark.limit(220)
def test_transformers_4_is_refused(trial: Trial) -> None:
    """vLLM's engine cannot be imported with transformers 4."""
    judge_own(trial, run_engine_import())


@pytest.mark.failure("vllm-024-allowed-layer-types")
@pytest.mark.needs("vllm", "transformers")
@pytest.mark.limit(220)
def test_layer_types_renamed_for_a_while(trial: Trial) -> None:
    """vLLM's engine cannot be imported with a transformers that has its layer types under another name."""
    judge_own(trial, run_engine_import())


def run_engine_import() -> Ended:
    """Return how `from vllm import LLM` ended."""
    key = ("engine",)
    if key not in _ran:
        _ran[key] = run_python("-c", "from vllm import LLM", timeout=200)
    return _ran[key]


@pytest.mark.failure("vllm-removed-engine-args")
@pytest.mark.tier("behave")
@pytest.mark.needs("vllm>=0.8.5", "transformers")
@pytest.mark.limit(220)
def test_flag_of_old_scripts_is_refused(trial: Trial) -> None:
    """vLLM's own parser refuses a flag that was dropped (the first of them, num_scheduler_steps)."""
    judge_own(trial, ran("vllm_flags", "--num-scheduler-steps", "1"))


@pytest.mark.failure("vllm-cuda-graph-sizes-flag")
@pytest.mark.tier("behave")
@pytest.mark.needs("vllm>=0.9.0", "verl>=0.6.0", "transformers")
@pytest.mark.limit(220)
def test_flag_that_verl_writes_is_refused(trial: Trial) -> None:
    """verl hands on cudagraph_capture_sizes as a flag that vLLM's parser refuses."""
    from importlib.metadata import files

    server = next(path for path in files("verl") or () if str(path) == f"{ROLLOUT}/vllm_async_server.py")
    if '"cuda_graph_sizes"' not in Path(str(server.locate())).read_text(encoding="utf-8"):
        trial.judge(None)
        return
    judge_own(trial, ran("vllm_flags", "--cuda-graph-sizes", "1", "2"))


@pytest.mark.tier("behave")
@pytest.mark.needs("vllm>=0.8.5", "transformers")
@pytest.mark.limit(220)
@pytest.mark.parametrize(
    ("flag", "value", "gone"),
    [
        ("--num-scheduler-steps", "1", "0.10.1"),
        ("--max-seq-len-to-capture", "4096", "0.11.0"),
        ("--guided-decoding-backend", "auto", "0.12.0"),
        ("--swap-space", "4", "0.18.0"),
        ("--max-num-partial-prefills", "1", "0.27.0"),
        ("--max-num-seqs", "8", ""),
    ],
)
def test_flags_leave_with_the_release_that_the_record_names(cell: Cell, flag: str, value: str, gone: str) -> None:
    """Each flag is taken before the release in which it left, and refused from then on."""
    from packaging.version import Version

    ended = ran("vllm_flags", flag, value)
    if ended.code not in (0, 2):
        why = [one.id for one in cell.records.values() if one.applies == "yes" and one.matches(ended.fault or "")]
        assert why, ended.last_line
        pytest.skip(f"hidden by {why[0]}, which this cell has")
    known = not gone or Version(cell.version("vllm") or "0") < Version(gone)
    assert (ended.code == 0) is known, ended.last_line
    assert known or f"unrecognized arguments: {flag}" in ended.text


@pytest.mark.failure("vllm-014-abort-requests-internal")
@pytest.mark.tier("behave")
@pytest.mark.needs("vllm>=0.8.5", "verl", "transformers")
@pytest.mark.limit(220)
def test_abort_of_one_request(trial: Trial) -> None:
    """verl aborts one request with the argument that vLLM's output processor took before; the error is swallowed."""
    from importlib.metadata import files

    server = [path for path in files("verl") or () if str(path) == f"{ROLLOUT}/vllm_async_server.py"]
    text = Path(str(server[0].locate())).read_text(encoding="utf-8") if server else ""
    calls = re.findall(r"output_processor\.abort_requests\(\[request_id\]\)", text)
    ended = run_python("-c", _ABORT, timeout=200)
    assert ended.code == 0, ended.last_line
    refused = "missing 1 required positional argument: 'internal'" in ended.stdout
    trial.observed(bool(calls) and refused, ended.stdout.strip().splitlines()[-1], calls=len(calls))


_ABORT = """
from vllm.v1.engine.output_processor import OutputProcessor

made = OutputProcessor.__new__(OutputProcessor)
made.request_states = {}
try:
    OutputProcessor.abort_requests(made, [])
    print("taken")
except TypeError as error:
    print(error)
except AttributeError as error:
    print("taken, the body asks for", error.name)
"""


@pytest.mark.failure("vllm-070-072-world-size-assert")
@pytest.mark.tier("behave")
@pytest.mark.needs("vllm>=0.7.0,<0.8", "torch", "transformers")
@pytest.mark.limit(220)
def test_groups_inside_a_larger_world(trial: Trial) -> None:
    """vLLM 0.7.0 to 0.7.2 refuse a tensor-parallel group that is smaller than the world."""
    judge_own(trial, ran("vllm_world"))


@pytest.mark.tier("behave")
@pytest.mark.needs("vllm", "transformers")
@pytest.mark.limit(220)
def test_sampling_parameters_that_verl_sets(cell: Cell) -> None:
    """SamplingParams takes what verl's rollout gives it and refuses what it does not know."""
    code = (
        "from vllm import SamplingParams\n"
        "made = SamplingParams(n=2, temperature=1.0, top_p=1.0, top_k=-1, logprobs=0, max_tokens=16)\n"
        "assert made.max_tokens == 16 and made.logprobs == 0\n"
        "try:\n    SamplingParams(best=1)\nexcept TypeError as error:\n    print('refused:', error)\n"
    )
    ended = run_python("-c", code, timeout=200)
    if ended.fault is not None:
        why = [one.id for one in cell.records.values() if one.applies == "yes" and one.matches(ended.fault)]
        assert why, ended.last_line
        pytest.skip(f"hidden by {why[0]}, which this cell has")
    assert "refused: " in ended.stdout
