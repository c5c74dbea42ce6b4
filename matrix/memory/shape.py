"""The shape of a dense decoder: the fields of its config.json that decide how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from matrix.datafile import Table, read, read_object
from matrix.errors import DataError, UsageError
from matrix.nearness import near_names

SHAPES = Path(__file__).with_name("shapes.toml")


class Family(StrEnum):
    """A family of dense decoders; the value is `model_type` of config.json."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    LLAMA = "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model as memory sees it; the fields are those of config.json, `name` is this project's or a path's.

    `source` says where the fields are from.
    """

    name: str
    family: Family
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse sizes that are not positive, and heads that do not divide."""
        for name, value in asdict(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is no multiple of num_key_value_heads")

    @property
    def query_width(self) -> int:
        """Return the width of the queries of all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Return the width of the keys (or values) of all heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Return how many numbers the token embedding holds (the untied output layer holds as many)."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Return how many numbers one decoder layer holds.

        Qwen2 has biases on query, key and value; Qwen3 a norm over each head's queries and keys instead; Llama neither
        (transformers 5.9.0, modeling_{qwen2,qwen3,llama}.py).
        """
        attention = self.hidden_size * (2 * self.query_width + 2 * self.key_width)
        mlp = 3 * self.hidden_size * self.intermediate_size
        norms = 2 * self.hidden_size
        match self.family:
            case Family.QWEN2:
                extra = self.query_width + 2 * self.key_width
            case Family.QWEN3:
                extra = 2 * self.head_dim
            case Family.LLAMA:
                extra = 0
        return attention + mlp + norms + extra

    @property
    def body_parameters(self) -> int:
        """Return how many numbers the model holds without its output layer: what a critic shares with it."""
        return self.embedding_parameters + self.num_hidden_layers * self.layer_parameters + self.hidden_size

    @property
    def parameters(self) -> int:
        """Return how many numbers a causal language model of this shape holds; a tied output layer counts once."""
        return self.body_parameters + (0 if self.tie_word_embeddings else self.embedding_parameters)

    @property
    def critic_parameters(self) -> int:
        """Return how many numbers the value model holds: the body and one row of weights with its bias.

        verl 0.9.1 makes it `AutoModelForTokenClassification` with one label (verl/utils/model.py).
        """
        return self.body_parameters + self.hidden_size + 1

    def to_json(self) -> dict[str, object]:
        """Return the shape as plain JSON; `from_json` gives it back."""
        return {**asdict(self), "family": self.family.value}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Shape:
        """Return the shape of `to_json`; raises KeyError, TypeError, ValueError for anything else."""
        values = dict(data)
        return cls(**{**values, "family": Family(str(values["family"]))})  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, path: Path) -> Shape:
        """Return the shape of a model's config.json (or of the folder it lies in).

        Raises:
            DataError: the file cannot be read, or lacks a field.
            UsageError: the model is of a family that this model of memory does not know.
        """
        file = path / "config.json" if path.is_dir() else path
        return _of_config(read_object(file, "Give a config.json."), file)


def _of_config(values: Mapping[str, object], file: Path) -> Shape:
    kind = values.get("model_type")
    if kind not in {family.value for family in Family}:
        raise UsageError(
            f"{file} is of model type `{kind}`, which the memory model does not know.",
            why="Mixtures of experts, multi-modal and other models hold their memory in other ways.",
            then=f"It knows dense decoders: {', '.join(Family)}.",
        )
    try:
        heads, hidden = int(str(values["num_attention_heads"])), int(str(values["hidden_size"]))
        return Shape(
            name=str(values.get("_name_or_path") or file.parent.name or file.name),
            family=Family(str(kind)),
            hidden_size=hidden,
            intermediate_size=int(str(values["intermediate_size"])),
            num_hidden_layers=int(str(values["num_hidden_layers"])),
            num_attention_heads=heads,
            num_key_value_heads=int(str(values.get("num_key_value_heads") or heads)),
            head_dim=int(str(values.get("head_dim") or hidden // heads)),
            vocab_size=int(str(values["vocab_size"])),
            max_position_embeddings=int(str(values["max_position_embeddings"])),
            tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
            source=file.name,
        )
    except KeyError as error:
        raise DataError(file, str(error.args[0]), "is missing", then="Give a complete config.json.") from error
    except ValueError as error:
        raise DataError(file, "", f"does not describe a model: {error}", then="Give a complete config.json.") from error


def load_shapes(path: Path = SHAPES) -> dict[str, Shape]:
    """Return the shapes of the data file by name; raises DataError where it is wrong."""
    data = read(path)
    found = {}
    for row in data.tables("shape"):
        shape = _of_row(row)
        if shape.name in found:
            raise row.error("name", f"`{shape.name}` is there twice")
        found[shape.name] = shape
    data.end()
    return found


def shape_named(name: str, shapes: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of a hub name (`Qwen/Qwen2.5-0.5B-Instruct`) or short name; raises UsageError for others."""
    known = load_shapes() if shapes is None else shapes
    short = name.rsplit("/", 1)[-1].lower()
    for ending in ("-instruct", "-base"):
        short = short.removesuffix(ending)
    if short in known:
        return known[short]
    near = near_names(short, known)
    raise UsageError(
        f"The shape of `{name}` is not known.",
        why=f"Closest: {', '.join(near)}." if near else f"Known: {', '.join(known)}.",
        then="Give its own with --config config.json.",
    )


def _of_row(row: Table) -> Shape:
    try:
        family = Family(row.text("family"))
        shape = Shape(
            name=row.text("name"),
            family=family,
            hidden_size=row.integer("hidden_size"),
            intermediate_size=row.integer("intermediate_size"),
            num_hidden_layers=row.integer("num_hidden_layers"),
            num_attention_heads=row.integer("num_attention_heads"),
            num_key_value_heads=row.integer("num_key_value_heads"),
            head_dim=row.integer("head_dim"),
            vocab_size=row.integer("vocab_size"),
            max_position_embeddings=row.integer("max_position_embeddings"),
            tie_word_embeddings=row.flag("tie_word_embeddings"),
            source=row.text("source"),
        )
    except ValueError as error:
        raise row.error("", str(error)) from error
    row.moment("checked")
    row.end()
    return shape
