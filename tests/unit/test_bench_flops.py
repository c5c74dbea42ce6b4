"""FLOPs: one formula of ours, verl's by release against what its own code gave, peaks and utilisation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from bench import counter
from bench.flops import Counted, Lengths, Phase, Summary, body_weights, head_weights, model_flops
from bench.peaks import Ceiling, Numbers, load_peaks, peak_of, utilisation
from bench.verl_flops import Span, formula_of, load_formulas
from matrix.errors import DataError, ToolError, UnknownReleaseError
from matrix.memory.shape import shape_named

RECORD = json.loads((Path(__file__).parent / "golden" / "bench" / "flops_counter.json").read_text(encoding="utf-8"))
TINY = shape_named("tiny")
HALF = shape_named("qwen2.5-0.5b")
PAIRS = st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 4096)), min_size=1, max_size=20)


def test_weights_in_products_are_the_models_without_norms_and_biases() -> None:
    shape = HALF
    small = shape.num_hidden_layers * (2 * shape.hidden_size + shape.query_width + 2 * shape.key_width)
    weights = body_weights(shape) + head_weights(shape, critic=False)
    # Tied: the output layer is the embedding, and stands once among the parameters.
    assert weights == shape.parameters - small - shape.hidden_size
    assert body_weights(shape) == 357_826_560
    assert head_weights(shape, critic=True) == 896


def by_hand(phase: Phase, prompt: int, response: int) -> int:
    """Return the FLOPs of one sequence of the tiny shape, product by product."""
    length = prompt + response
    fed, drawn = (length - 1, response) if phase is Phase.GENERATION else (length, length)
    total = 0
    for _ in range(2):
        for rows, columns in ((128, 128), (64, 128), (64, 128), (128, 128), (256, 128), (256, 128), (128, 256)):
            total += 2 * rows * columns * fed
        total += 2 * (fed * fed * 128)
    return total + 2 * 128 * (1 if phase.is_critic else 151_936) * drawn


@pytest.mark.parametrize("phase", Phase)
def test_a_sequence_counted_by_hand(phase: Phase) -> None:
    counted = model_flops(TINY, phase, Lengths.of([(5, 7)]), epochs=2)
    assert counted.total == by_hand(phase, 5, 7) * (6 if phase.is_update else 1)
    assert counted.uncertainty == 0


@given(PAIRS, st.sampled_from(Phase))
def test_a_batch_is_the_sum_of_its_sequences(pairs: list[tuple[int, int]], phase: Phase) -> None:
    whole = model_flops(TINY, phase, Lengths.of(pairs)).total
    assert whole == pytest.approx(sum(model_flops(TINY, phase, Lengths.of([pair])).total for pair in pairs))


@given(PAIRS)
def test_summaries_hold_the_truth_within_their_spread(pairs: list[tuple[int, int]]) -> None:
    def summary(values: list[int]) -> Summary:
        mean = min(max(values), max(min(values), sum(values) / len(values)))
        return Summary(mean=mean, low=min(values), high=max(values))

    known = Lengths.of(pairs)
    told = Lengths.summarised(len(pairs), summary([a for a, _ in pairs]), summary([b for _, b in pairs]))
    assert told.tokens == pytest.approx(known.tokens)
    assert abs(told.squares - known.squares) <= told.spread + 1e-6 * known.squares


def test_lengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Lengths.of([(1, -1)])
    with pytest.raises(ValueError, match="no lengths have"):
        Summary(mean=3, low=4, high=5)
    assert Counted(dense=0, attention=0).uncertainty == 0


@pytest.mark.parametrize("release", list(RECORD))
def test_verls_flops_are_those_of_its_code(release: str) -> None:
    wanted = RECORD[release]["tflops"]
    asked = [(name, lengths) for name in counter.SHAPES for lengths in counter.LENGTHS]
    assert len(wanted) == len(asked)
    for (name, lengths), tflops in zip(asked, wanted, strict=True):
        got = formula_of(Version(release)).flops(shape_named(name), Lengths.of([(size, 0) for size in lengths]))
        assert got / 1e12 == pytest.approx(tflops), (name, lengths)


@pytest.mark.parametrize("release", list(RECORD))
def test_verls_peaks_are_those_of_its_code(release: str) -> None:
    for gpu, peak in RECORD[release]["peaks"].items():
        got = formula_of(Version(release)).peak(gpu)
        assert got == (math.inf if peak is None else pytest.approx(peak)), gpu


def test_what_the_releases_disagree_on() -> None:
    releases = ("0.2", "0.3.0.post1", "0.4.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.1")
    found = [formula_of(Version(release)) for release in releases]
    assert [formula.attention for formula in found] == [12, 12, 12, 12, 12, 6, 6, 6]
    assert [formula.span for formula in found] == [Span.UPDATE] * 6 + [Span.MINI_BATCH] * 2
    assert [formula.peak("NVIDIA H200") / 1e12 for formula in found] == pytest.approx([148] * 2 + [989] * 6)
    with pytest.raises(UnknownReleaseError, match="0\\.1"):
        formula_of(Version("0.1"))


def test_verl_counts_the_embedding_and_we_do_not() -> None:
    lengths = Lengths.of([(512, 512)] * 64)
    ours = model_flops(HALF, Phase.UPDATE_ACTOR, lengths).total
    assert formula_of(Version("0.9.1")).flops(HALF, lengths) - ours == 6 * HALF.embedding_parameters * lengths.tokens


def test_an_mfu_of_verl() -> None:
    lengths = Lengths.of([(512, 512)] * 64)
    formula = formula_of(Version("0.9.1"))
    assert formula.mfu(HALF, lengths, seconds=1, gpus=2, gpu="NVIDIA H200") == pytest.approx(256.42 / 989 / 2, rel=1e-4)
    assert formula.mfu(HALF, lengths, seconds=3, gpus=1, gpu="NVIDIA L4", epochs=3) == 0
    with pytest.raises(ValueError, match="needs time"):
        formula.mfu(HALF, lengths, seconds=0, gpus=1, gpu="NVIDIA H200")


GPUS = [
    ("NVIDIA H200", 989.5),
    ("NVIDIA H200 NVL", 835.5),
    ("NVIDIA H20", 148),
    ("NVIDIA H100 80GB HBM3", 989.5),
    ("NVIDIA H100 PCIe", 756.5),
    ("NVIDIA A100-SXM4-80GB", 312),
    ("NVIDIA L4", 121),
    ("NVIDIA L40S", 362.05),
    ("NVIDIA L40", 181.05),
    ("NVIDIA GB200", None),
    ("NVIDIA H200 MIG 1g.18gb", None),
    ("", None),
]


@pytest.mark.parametrize(("gpu", "tflops"), GPUS)
def test_a_peak_is_found_by_the_whole_name(gpu: str, tflops: float | None) -> None:
    peak = peak_of(gpu)
    assert (peak and peak.flops[Numbers.BF16] / 1e12) == (tflops if tflops is None else pytest.approx(tflops))


def test_no_name_has_two_peaks() -> None:
    peaks = load_peaks()
    for gpu in (*counter.GPUS, *(name for name, _ in GPUS)):
        assert sum(peak.is_of(gpu) for peak in peaks) <= 1, gpu


def test_utilisation_has_both_denominators_or_says_why_not() -> None:
    ceiling = Ceiling(flops=700e12, numbers=Numbers.BF16, how="8192 cubed, cuBLAS")
    both = utilisation(1400e12, 2.0, 2, peak=peak_of("NVIDIA H200"), ceiling=ceiling)
    assert both.peak == pytest.approx(350 / 989.5)
    assert both.ceiling == pytest.approx(0.5)
    assert "H200" in both.source
    assert not both.why_not
    unknown = utilisation(1400e12, 2.0, 2, peak=peak_of("Some GPU"), ceiling=ceiling)
    assert unknown.peak is None
    assert unknown.ceiling == pytest.approx(0.5)
    assert "not known" in unknown.why_not
    other = utilisation(1e12, 1.0, 1, peak=peak_of("NVIDIA L4"), ceiling=ceiling, numbers=Numbers.FP32)
    assert (other.peak, other.ceiling, other.source) == (None, None, "")
    assert "fp32" in other.why_not
    with pytest.raises(ValueError, match="no utilisation"):
        utilisation(1e12, 0.0, 1, peak=None)
    with pytest.raises(ValueError, match="is none"):
        Ceiling(flops=0, numbers=Numbers.BF16, how="")


ROW = '[[peak]]\nname = "X"\nbf16 = 1.5\nsource = "s"\nchecked = 2026-11-30\n'
TABLE = '[[peaks]]\nname = "a"\npeaks = ["H200 989"]\n'
LINE = (
    '[[formula]]\nreleases = ">=0.2"\nattention = 6\nspan = "update"\nsource = "s"\nfamilies = ["qwen2"]\npeaks = "a"\n'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROW.replace("1.5", "0"), "above 0"),
        (ROW.replace("1.5", "true"), "above 0"),
        (ROW.replace("bf16 = 1.5\n", ""), "no peak"),
        (ROW.replace("X", "("), "no pattern"),
    ],
)
def test_peaks_are_checked(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "peaks.toml"
    path.write_text(f"schema = 1\n{text}", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_peaks(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TABLE.replace("989", "many") + LINE, "NAME TFLOPS"),
        (TABLE + LINE.replace('peaks = "a"', 'peaks = "b"'), "no table"),
        (TABLE + LINE.replace("update", "week"), "none of"),
        (TABLE + LINE.replace(">=0.2", "new"), "not a range"),
    ],
)
def test_formulas_are_checked(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "formulas.toml"
    path.write_text(f"schema = 1\n{text}", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_formulas(path)


COUNTER = """\
import torch
from transformers import PretrainedConfig
from verl.utils.device import get_torch_device

def get_device_flops(unit="T"):
    return float("inf") if "L4" in get_torch_device().get_device_name() else 2e12

class FlopsCounter:
    def __init__(self, config):
        print("only so many")
        self.config = config

    def estimate_flops(self, lengths, delta):
        return sum(lengths) * self.config.hidden_size / delta, 1
"""


def test_the_counter_of_a_release_is_run_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("0.9.1", "notes"):
        code = tmp_path / "wheels" / name / counter.COUNTER
        code.parent.mkdir(parents=True)
        code.write_text(COUNTER, encoding="utf-8")
    (tmp_path / "wheels" / "0.9.2").mkdir()
    out = tmp_path / "out" / "record.json"
    words = [str(tmp_path / "wheels"), "--out", str(out)]
    assert counter.main([*words, "--check"]) == 1
    assert not out.exists()
    assert counter.main(words) == 1
    assert counter.main([*words, "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("the same")
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found) == ["0.9.1"]
    assert found["0.9.1"]["peaks"]["NVIDIA L4"] is None
    assert found["0.9.1"]["peaks"]["NVIDIA H200"] == 2e12
    assert found["0.9.1"]["tflops"][0] == 65_536 * 896


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="holds no release"):
        counter.record(tmp_path / "nowhere")
    code = tmp_path / "0.9.1" / counter.COUNTER
    code.parent.mkdir(parents=True)
    code.write_text("import nothing_like_it\n", encoding="utf-8")
    with pytest.raises(ToolError, match="cannot be run"):
        counter.record(tmp_path)
