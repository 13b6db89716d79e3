"""How the paper's tables are reproduced on each data set: presets, runs, and in what they depart from the paper."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tier import experiment, paper, presets, summary
from tier.config import DefenseName
from tier.demo import Job
from tier.paper import TABLES, Place
from tier.presets import Preset


@dataclass(frozen=True)
class Protocol:
    """How a data set is reproduced: the preset of Tables I to VII, that of the sweeps (VIII and IX), what departs."""

    dataset: str
    main: str
    sweeps: str
    departures: tuple[str, ...] = ()


PROTOCOLS = {
    protocol.dataset: protocol
    for protocol in (
        Protocol(
            "gtsrb", "gtsrb_paper", "gtsrb",
            (
                "Tables VIII and IX at 40 epochs instead of 100",
                "every third frame of each track, at 32x32; flips left out and crops of 1 pixel, since GTSRB's signs "
                "are centred and some are another's mirror image; the paper does not give its augmentation",
                "SGD, one-cycle, learning rate 0.05; the paper names neither",
            ),
        ),
    )
}  # fmt: skip


def protocol(dataset: str) -> Protocol:
    """How a data set is reproduced; raises ValueError listing those that are."""
    if dataset not in PROTOCOLS:
        raise ValueError(f"'{dataset}' is not reproduced here; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[dataset]


# ---- what has to be computed


def jobs(of: Protocol, tables: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Job]:
    """Every stage that the tables need, each once, what most numbers depend on first.

    Without `tables`, also what the figures need. Raises ValueError for a table that the paper does not have.
    """
    paper.of(of.dataset, tables)  # refuses
    found: dict[tuple[str, str], Job] = {}
    chosen = [_JOBS[table] for table in _COMPUTED_IN_ORDER if table in (tables or TABLES)]
    for made in chosen if tables else [*chosen, _figure_jobs]:
        for job in made(of, seeds):
            found.setdefault((job[1], experiment.key(job[1], job[2])), job)
    return list(found.values())


_COMPUTED_IN_ORDER = ("II", "IV", "I", "III", "VIII", "IX", "V", "VII", "VI")
MODELS: tuple[DefenseName, ...] = ("none", "tier_full")  # that the paper's figures compare
AUGMENTED: DefenseName = "augmentation"  # what the paper's None may be (VI-D)


def _seeds(preset: Preset, seeds: Sequence[int] | None) -> Sequence[int]:
    return seeds or preset.seeds


def _utility_jobs(*names: DefenseName) -> Callable[[Protocol, Sequence[int] | None], Iterator[Job]]:
    def made(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
        preset = presets.get(of.main)
        for name in names:
            for seed in _seeds(preset, seeds):
                yield f"{name} seed {seed}", "report", preset.run(name, seed)

    return made


def _split_jobs(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
    yield "the sets", "split", presets.get(of.main).experiment


def _attack_jobs(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
    preset = presets.get(of.main)
    for seed in _seeds(preset, seeds):
        for defense, explainer, attacker, e in summary.attack_runs(preset, defenses("V"), explainers("V"), seed, None):
            if attacker == "adaptive":  # a shadow with the same defense
                yield f"{defense} seed {seed} {explainer}", "attack", e


def _quality_jobs(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
    preset = presets.get(of.main)
    for defense, explainer, seed, e in summary.quality_runs(preset, defenses("VI"), explainers("VI"), seeds):
        yield f"{defense} seed {seed} {explainer}", "quality", e


def _fidelity_jobs(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
    preset = presets.get(of.main)
    for defense, explainer, seed, e in summary.fidelity_runs(preset, defenses("VII"), explainers("VII"), seeds):
        yield f"{defense} seed {seed} {explainer}", "fidelity", e


def _sweep_jobs(table: str) -> Callable[[Protocol, Sequence[int] | None], Iterator[Job]]:
    def made(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
        preset = presets.get(of.sweeps)
        points = dict.fromkeys(point(number.place) for number in paper.of(of.dataset, [table]))
        for defense, lam, beta in points:
            for seed in _seeds(preset, seeds):
                label = f"{defense} lambda {lam:g} beta {beta:g} seed {seed}"
                yield label, "report", preset.point(defense, lam, beta, seed)

    return made


def _figure_jobs(of: Protocol, seeds: Sequence[int] | None) -> Iterator[Job]:
    """Beyond what tables need: the curves of Figure 3 and the maps of Figure 6."""
    preset = presets.get(of.main)
    for name in MODELS:
        for explainer in explainers("V"):
            view = preset.run(name, _seeds(preset, seeds)[0]).set({"explain.name": explainer})
            for stage in ("trajectory", "gallery"):
                yield f"{name} {explainer}, {stage}", stage, view


_JOBS: dict[str, Callable[[Protocol, Sequence[int] | None], Iterator[Job]]] = {
    "I": _utility_jobs("none", AUGMENTED),
    "II": _split_jobs,
    "III": _utility_jobs("tier_full"),
    "IV": _utility_jobs("none", AUGMENTED, "tier_full", "dpsgd_eps100"),
    "V": _attack_jobs,
    "VI": _quality_jobs,
    "VII": _fidelity_jobs,
    "VIII": _sweep_jobs("VIII"),
    "IX": _sweep_jobs("IX"),
}


@lru_cache(maxsize=16)
def defenses(table: str) -> tuple[DefenseName, ...]:
    """The defenses in a table of the paper; in Table V also AUGMENTED, which stands beside None."""
    named = [n.place.defense for n in paper.printed() if n.place.table == table and n.place.defense is not None]
    more: list[DefenseName] = [AUGMENTED] if table == "V" else []
    return tuple(dict.fromkeys([*named, *more]))


@lru_cache(maxsize=16)
def explainers(table: str) -> tuple[str, ...]:
    """The explainers in a table of the paper."""
    named = [n.place.explainer for n in paper.printed() if n.place.table == table and n.place.explainer is not None]
    return tuple(dict.fromkeys(named))


def point(place: Place) -> tuple[DefenseName, float, float]:
    """Defense, lambda and beta of a place in Table VIII or IX."""
    assert place.defense is not None
    assert place.lam is not None
    assert place.beta is not None
    return place.defense, place.lam, place.beta
