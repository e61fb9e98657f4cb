"""Specification of a run: the attack, the run itself, and the jobs that it is divided into."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from pdpgd.errors import InvalidInputError, expect_setting
from pdpgd.files import digest_of

FORMAT = 3
DIFFERENCES_SHOWN = 12
_NEEDED: Mapping[str, Mapping[str, type]] = {
    "model": {"source": str, "sha256": str},
    "data": {"name": str, "samples": int, "sha256": str},
}
"""Entries without which a spec cannot be read, with their types."""

JobKind = Literal["chunk", "second start", "preflight"]

PREFLIGHT, SECOND_START = "preflight", "second-start"
PREFLIGHT_SAMPLES = 64
"""Number of samples on which the model is checked before the run."""
SECOND_STARTS = (8, 64)
"""Minimum and maximum number of samples that are attacked from a second start; between them, one in thirty."""


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """An attack as asked for.

    Args:
        name: Name of the attack in the catalogue, or of the user's own function.
        budget: Maximum number of forward plus backward passes per sample and norm; None for an attack that has
            settings instead.
        restarts: Number of random starts; None for the attack's own default.
        settings: Settings of the attack that override those implied by the budget, without `restarts`.
        function: The user's own attack, in the shape of `pdpgd.Attack`; None for an attack of the catalogue.

    Example:
        >>> AttackSpec.parse("pgd:10").label
        'pgd:10'
    """

    name: str
    budget: int | None = None
    restarts: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    @classmethod
    def parse(cls, text: str) -> AttackSpec:
        """Read an attack as users write it.

        Args:
            text: NAME or NAME:RESTARTS.

        Returns:
            The attack, without a budget; whether the catalogue has it is not checked.

        Raises:
            InvalidInputError: The number of restarts is not an integer of at least 1.
        """
        name, colon, restarts = text.strip().partition(":")
        if not colon:
            return cls(name=name)
        if not restarts.isdecimal() or int(restarts) < 1:
            raise InvalidInputError(f"attacks: expected NAME or NAME:RESTARTS such as pgd:10, got {text!r}")
        return cls(name=name, restarts=int(restarts))

    @property
    def label(self) -> str:
        """The attack as users write it: NAME or NAME:RESTARTS."""
        return self.name if self.restarts is None else f"{self.name}:{self.restarts}"

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings, including the number of restarts if it is given."""
        return dict(self.settings) if self.restarts is None else {**self.settings, "restarts": self.restarts}


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The identity of a run. The same spec gives the same bits on the same machine.

    Raises:
        InvalidInputError: There is no norm, a norm occurs twice, or a size, the number of threads or the seed is out of
            range.

    Example:
        >>> evaluation = pdpgd.load_evaluation("runs/mnist")
        >>> evaluation.spec.attack, evaluation.spec.budget
        ('auto', 50)
    """

    model: Mapping[str, Any]
    """Source of the model and checksum of its weights."""
    data: Mapping[str, Any]
    """Name of the data, number and shape of its samples, and their checksum."""
    norms: tuple[str, ...]
    """Norms in the order in which they are attacked: adversarial examples of one are warm starts for the next."""
    attack: str
    """Name of the attack in the catalogue, or of the user's own function."""
    budget: int | None
    """Maximum number of forward plus backward passes per sample and norm; None for an attack with its own settings."""
    seed: int
    """Random seed for attack initialization."""
    chunk_size: int
    """Number of samples that are attacked, judged and written together."""
    batch_size: int
    """Maximum number of rows per forward pass."""
    threads: int
    """CPU threads per chunk. The order of sums, and so the last bits, depend on it."""
    device: str
    """Device of the model, such as "cpu"."""
    made_with: Mapping[str, str]
    """Versions of the libraries that compute the numbers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the attack that override those implied by the budget."""
    checks: bool = True
    """Whether cheap attacks, quantization to 8 bits and second starts are part of the run."""
    draws: int = 1
    """Draws of a randomized model that logits and gradients are means over; above 1, points are judged by a vote."""
    format: int = field(default=FORMAT)
    """Version of the format of spec.json."""

    def __post_init__(self) -> None:
        if not self.norms:
            raise InvalidInputError("norms: expected at least one, got none")
        if len(set(self.norms)) < len(self.norms):
            raise InvalidInputError(f"norms: expected each one once, got {', '.join(self.norms)}")
        for name in ("chunk_size", "batch_size", "threads", "draws"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", type(value) is int and value >= 1)
        expect_setting(self, "seed", "an integer of at least 0", type(self.seed) is int and self.seed >= 0)

    @property
    def model_name(self) -> str:
        """Source of the model, and the groups of classes that its logits are pooled over."""
        pool = self.model.get("pool")
        return f"{self.model['source']}{f' pooled over {pool}' if pool else ''}"

    @property
    def samples(self) -> int:
        """Number of samples of the run."""
        return int(self.data["samples"])

    @property
    def only_radii(self) -> dict[str, tuple[float, ...]]:
        """The radii by norm that the attack was asked about; empty if it was asked for the smallest distances."""
        radii = self.settings.get("radii")
        # Attacks within a radius have a list, which all norms share.
        return {norm: tuple(radii[norm]) for norm in self.norms} if isinstance(radii, Mapping) else {}

    def as_json(self) -> dict[str, Any]:
        """Return the entries of spec.json.

        Returns:
            The fields by name, in types that JSON has. A single draw is left out: runs of before have none.
        """
        entries: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.draws == 1:
            del entries["draws"]
        return entries

    @classmethod
    def from_json(cls, entries: object) -> RunSpec:
        """Read the entries of spec.json.

        Args:
            entries: Content of the file, of this format or the one before.

        Returns:
            The spec.

        Raises:
            InvalidInputError: The entries are not those of a spec.
        """
        known = {entry.name for entry in fields(cls)}
        if isinstance(entries, dict) and entries.get("format") == 2:
            # Format 2 had neither settings nor a choice of checks.
            entries = {**entries, "settings": {}, "checks": True, "format": FORMAT}
        if isinstance(entries, dict):
            entries = {"draws": 1, **entries}
        if not isinstance(entries, dict) or set(entries) != known or entries["format"] != FORMAT:
            raise InvalidInputError(f"expected a spec of format {FORMAT} with the entries {', '.join(sorted(known))}")
        for name, kinds in _NEEDED.items():
            if not isinstance(entries[name], dict) or not all(
                isinstance(entries[name].get(each), kind) for each, kind in kinds.items()
            ):
                raise InvalidInputError(f"expected {name} with the entries {', '.join(kinds)}, got {entries[name]!r}")
        return cls(**{**entries, "norms": tuple(entries["norms"])})

    def digest(self) -> str:
        """Compute the checksum that identifies the run.

        Returns:
            SHA-256 of the entries, as hexadecimal digits.
        """
        return digest_of(self.as_json())


def jobs_of(spec: RunSpec) -> dict[str, range]:
    """Divide a run into jobs: map the name of every job to the samples that it covers."""
    count = spec.samples
    jobs = {PREFLIGHT: range(min(count, PREFLIGHT_SAMPLES))}
    for number, first in enumerate(range(0, count, spec.chunk_size)):
        jobs[f"chunk-{number:05d}"] = range(first, min(first + spec.chunk_size, count))
    if spec.checks:
        least, most = SECOND_STARTS
        jobs[SECOND_START] = range(min(count, max(least, min(most, count // 30))))
    return jobs


def chunks_of(jobs: Iterable[str]) -> list[str]:
    """Return the names of the jobs that are chunks."""
    return [name for name in jobs if kind_of(name) == "chunk"]


def kind_of(job: str) -> JobKind:
    """Return the kind of a job, which its name determines."""
    kinds: dict[str, JobKind] = {PREFLIGHT: "preflight", SECOND_START: "second start"}
    return kinds.get(job, "chunk")


def differences(stored: RunSpec, requested: RunSpec) -> list[str]:
    """List the entries in which two specs differ, one line each."""
    old, new = _flattened(stored.as_json()), _flattened(requested.as_json())
    return [
        f"{name}: {_short(old.get(name, 'nothing'))} stored, {_short(new.get(name, 'nothing'))} requested"
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name] != new[name]
    ][:DIFFERENCES_SHOWN]


def _flattened(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        flat.update(_flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
