"""Results of jobs: timings and counts, measurements of the model, records and adversarial examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from numpy.typing import NDArray

from pdpgd.runs.records import Columns


@dataclass(frozen=True)
class Passes:
    """Number of forward or backward passes through the model, summed over samples."""

    attacks: int
    """Passes of the attacks whose adversarial examples are recorded."""
    checks: int
    """Passes of the referee, the cheap attacks and the other checks."""

    @property
    def total(self) -> int:
        """All passes."""
        return self.attacks + self.checks


@dataclass(frozen=True, kw_only=True)
class PreflightStats:
    """Measurements of the model before it is attacked, on a few samples; `reliability` interprets them."""

    samples: int
    """Number of samples that were measured."""
    classes: int
    """Number of classes of the model."""
    modules_in_train_mode: int
    """Number of modules of the model that are in train mode."""
    repeated: float
    """Largest difference of the logits between repeated passes, in units of rounding errors."""
    alone: float
    """Largest difference of the logits between a batch and single samples, in units of rounding errors."""
    probabilities: float
    """Share of the samples whose outputs are probabilities."""
    no_gradient: float
    """Share of the samples whose gradient is zero."""
    broken_gradient: float
    """Share of the samples whose gradient is NaN or infinite."""
    shaken: float
    """Share of the samples whose class changes under noise of half a gray level."""
    gradient_path: bool | None = None
    """Whether the logits depend on the inputs through autograd; None in runs that did not measure it."""
    random_parameters: int | None = None
    """Number of parameters that are drawn at random when the model is built; None if unknown."""
    random_parameters_measured: bool = False
    """Whether `random_parameters` was measured at all; older runs did not."""

    def as_json(self) -> dict[str, Any]:
        """Return the entries of a receipt, without those that were not measured.

        Returns:
            The measurements by name.
        """
        entries = asdict(self)
        if not entries.pop("random_parameters_measured"):
            del entries["random_parameters"]
        if self.gradient_path is None:
            del entries["gradient_path"]
        return entries

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> PreflightStats:
        """Read the entries of a receipt; those that older runs did not measure may be missing.

        Args:
            entries: Entries of the receipt of a preflight, which may have others as well.

        Returns:
            The measurements.

        Raises:
            ValueError: Other measurements are missing.
        """
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in entries.items() if name in names}
        try:
            return cls(**known, random_parameters_measured="random_parameters" in known)
        except TypeError as error:
            raise ValueError(f"expected the measurements of a model, got {', '.join(sorted(entries))}") from error


@dataclass(frozen=True, kw_only=True)
class ChunkStats:
    """Timings, counts and circumstances of one job. They may differ between repetitions; the records may not.

    Example:
        >>> stats = ChunkStats(seconds=1.5, forwards=Passes(90, 10), backwards=Passes(80, 0))
        >>> ChunkStats.from_json(stats.as_json()) == stats
        True
    """

    seconds: float = 0.0
    """Wall time of the whole job."""
    batch_size: int = 0
    """Maximum number of rows per forward pass that fit into memory."""
    halved: bool = False
    """Whether the batch size had to be reduced because memory ran out."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Platform, processor and GPU."""
    forwards: Passes
    """Forward passes."""
    backwards: Passes
    """Backward passes."""
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the attack in each norm, of the cheap attacks and of the quantization to 8 bits."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Error messages of the attack, by the sample (and norm) that it failed on."""
    preflight: PreflightStats | None = None
    """Measurements of the model; None unless the job is the preflight."""

    def as_json(self) -> dict[str, Any]:
        """Return the entries of a receipt.

        Returns:
            The stats by name; those of a preflight include its measurements, and neither stages nor faults.
        """
        measured = {} if self.preflight is None else self.preflight.as_json()
        stages = {} if self.preflight is not None else {"seconds_of": dict(self.seconds_by_stage)}
        faults = {} if self.preflight is not None else {"faults": dict(self.faults)}
        return {
            **measured,
            **stages,
            "forwards": asdict(self.forwards),
            "backwards": asdict(self.backwards),
            **faults,
            "seconds": self.seconds,
            "batch_size": self.batch_size,
            "halved": self.halved,
            "machine": dict(self.machine),
        }

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> ChunkStats:
        """Read the entries of a receipt; those without stages are of a preflight.

        Args:
            entries: Entries of the receipt. Older ones may lack the faults.

        Returns:
            The stats.

        Raises:
            ValueError: Entries are missing or have another type.
        """
        try:
            return cls(
                seconds=float(entries["seconds"]),
                batch_size=int(entries["batch_size"]),
                halved=bool(entries["halved"]),
                machine=dict(entries["machine"]),
                forwards=Passes(**entries["forwards"]),
                backwards=Passes(**entries["backwards"]),
                seconds_by_stage=dict(entries.get("seconds_of", {})),
                faults=dict(entries.get("faults", {})),
                preflight=None if "seconds_of" in entries else PreflightStats.from_json(entries),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the timings and counts of a job ({error!r})") from error


@dataclass(frozen=True)
class JobResult:
    """The result of a job. Only its stats may differ from one execution to the next."""

    stats: ChunkStats
    columns: Columns | None = None
    """The records; None for the preflight."""
    examples: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Inputs, adversarial examples and traces, by name."""
