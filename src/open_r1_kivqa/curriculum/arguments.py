"""Flags of the curriculum, for TRL's parser like the others in `arguments.py`."""

import dataclasses
import math
from dataclasses import dataclass

from ..errors import InputError
from ..flags import flag
from .levels import Levels, parse_levels

# Names only: the parts themselves bring numba, which a launcher that just reads flags can do without.
ESTIMATES = ("posterior", "paper")
WEIGHTINGS = ("gaussian", "variance", "teaching", "uniform")
BALANCES = ("none", "file", "question_type")


@dataclass
class CurriculumArguments:
    """Which samples are drawn, and how hard their contexts are. All flags but `curriculum` act only together with it."""

    curriculum: bool = flag(
        False,
        "Draw the samples that are likely to teach, at the context level the model is ready for. See docs/curriculum.md.",
    )
    curriculum_levels: str = flag(
        "1,2,3,4,5,retrieved",
        "Context levels from easy to hard, as --context_level takes them, separated by ','. '' stays at --context_level.",
    )
    curriculum_window: int = flag(300, "Promotion looks at the last so many prompts of the level.")
    curriculum_threshold: float = flag(0.55, "Promotion when the window's mean is above this.")
    curriculum_window_mean: str = flag(
        "weighted",
        "'weighted' undoes in the window's mean that some samples are drawn more often than others; 'raw' is the published rule.",
    )
    curriculum_demotion_threshold: float | None = flag(
        None, "Back to the level before when a full window's mean is below this. Default: never."
    )
    curriculum_carry: float = flag(
        0.25, "Share of the observations that is kept when the level moves, since a harder level changes what is true."
    )
    curriculum_weighting: str = flag(
        "gaussian",
        "Weight of a sample by the estimate: 'gaussian' around a success share of 0.5, 'variance' p(1-p), 'teaching' (chance that its group has a non-zero advantage), or 'uniform'.",
    )
    curriculum_sigma: float = flag(0.2, "Width of the gaussian weighting, in success share.")
    curriculum_exploration: float = flag(
        0.1, "Share of the draws that is uniform over all samples, whatever the estimate says."
    )
    curriculum_max_draws: int | None = flag(
        None,
        "Most times a sample is drawn in an epoch's worth of draws. Default: 4, and 1 with the uniform weighting, which makes shuffled epochs.",
    )
    curriculum_balance: str = flag(
        "none", "Keep each data 'file' or 'question_type' at its share of the rows; 'none' lets the weights decide."
    )
    curriculum_signal: list[str] = flag(
        [],
        "Names of the rewards whose mean is a rollout's success. Default: accuracy, or the first reward that is not format.",
    )
    curriculum_signal_range: list[float] = flag(
        [0.0, 1.0], "Lowest and highest value of that mean; scaled to 0 and 1, and clipped there."
    )
    curriculum_half_life: float = flag(
        200.0, "Optimizer steps after which an observation counts half, since the model has moved on."
    )
    curriculum_estimate: str = flag(
        "posterior", "How difficulty is estimated: 'posterior' or 'paper' (the published propagation, as written)."
    )
    curriculum_graph: str | None = flag(
        None, "Graph of the samples that `kivqa graph` made; without it an observation tells of its own sample alone."
    )
    prop_alpha: float = flag(0.8, "Share of a sample's value that comes from its neighbours, at each propagation.")
    prop_iterations: int = flag(10, "Most iterations of a propagation.")
    prop_epsilon: float = flag(1e-4, "A propagation ends when an iteration changes less than this.")
    curriculum_snapshot_steps: int = flag(
        0, "Write the whole state to OUTPUT_DIR/curriculum/step-N.npz every so many steps; 0 never."
    )
    curriculum_reset: bool = flag(
        False, "With --resume_from_checkpoint: go on with the model, and with a fresh curriculum."
    )
    dynamic_sampling_rounds: int = flag(
        1,
        "Generate at most so many batches of prompts for each batch that is trained on, until it is full of groups with a non-zero advantage (DAPO's dynamic sampling). 1 takes the first batch as it is.",
    )

    def __post_init__(self):
        if not self.curriculum:
            self._refuse_flags_without_effect()
            return
        self._check_numbers()
        self._check_choices()
        self._refuse_idle_flags()
        self.levels("retrieved")

    def _refuse_flags_without_effect(self):
        plain = {one.name: default_of(one) for one in dataclasses.fields(self)}
        changed = [name for name, value in plain.items() if getattr(self, name) != value]
        if changed:
            raise InputError(f"--{changed[0]} acts only with the curriculum: add --curriculum true, or leave it out.")

    def _check_numbers(self):
        wanted = {
            "curriculum_carry": (0 <= self.curriculum_carry <= 1, "a share from 0 to 1 is wanted"),
            "curriculum_sigma": (0.001 <= self.curriculum_sigma < math.inf, "a number from 0.001 on is wanted"),
            "curriculum_half_life": (self.curriculum_half_life > 0, "a number of steps above 0 is wanted"),
            "prop_alpha": (0 <= self.prop_alpha < 1, "a share from 0 to below 1 is wanted"),
            "prop_iterations": (self.prop_iterations >= 1, "at least 1 is wanted"),
            "prop_epsilon": (self.prop_epsilon >= 0, "at least 0 is wanted"),
            "curriculum_snapshot_steps": (self.curriculum_snapshot_steps >= 0, "at least 0 is wanted"),
            "dynamic_sampling_rounds": (self.dynamic_sampling_rounds >= 1, "at least 1 is wanted"),
        }
        for name, (good, words) in wanted.items():
            if not good:
                raise InputError(f"--{name} {getattr(self, name)}: {words}.")
        ends = self.curriculum_signal_range
        if len(ends) != 2 or not all(map(math.isfinite, ends)) or not ends[0] < ends[1]:
            given = " ".join(map(str, ends))
            raise InputError(f"--curriculum_signal_range {given}: two numbers are wanted, the lower one first.")

    def _check_choices(self):
        choices = {
            "curriculum_weighting": WEIGHTINGS,
            "curriculum_balance": BALANCES,
            "curriculum_estimate": ESTIMATES,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"--{name} {getattr(self, name)!r} is unknown: give one of {', '.join(known)}.")

    def _refuse_idle_flags(self):
        """`InputError` for a flag that is set and that another one keeps from acting."""
        plain = {one.name: default_of(one) for one in dataclasses.fields(self)}
        if self.curriculum_weighting != "gaussian" and self.curriculum_sigma != plain["curriculum_sigma"]:
            raise InputError(
                f"--curriculum_sigma {self.curriculum_sigma} is the width of the gaussian weighting, and --curriculum_weighting is {self.curriculum_weighting}: leave one of them out."
            )
        for name in ("prop_alpha", "prop_iterations", "prop_epsilon"):
            if not self.curriculum_graph and getattr(self, name) != plain[name]:
                raise InputError(
                    f"--{name} {getattr(self, name)} acts on the graph of the samples: give --curriculum_graph, or leave it out."
                )

    def levels(self, context_level: str) -> Levels:
        """The levels from easy to hard, at the first of them; `context_level` alone if there are none. `InputError` if they, or what decides on promotion, can't be used."""
        names = parse_levels(self.curriculum_levels) if self.curriculum_levels.strip() else (context_level,)
        if len(names) > 1 and context_level != "retrieved":
            raise InputError(
                f"--context_level {context_level} has nothing to act on: --curriculum_levels {self.curriculum_levels} says what prompts show. "
                "Leave one of them out (--curriculum_levels '' stays at --context_level)."
            )
        if len(names) == 1 and self.curriculum_demotion_threshold is not None:
            raise InputError(
                f"--curriculum_demotion_threshold has no level to go back to: --curriculum_levels {self.curriculum_levels!r} has one. Leave it out."
            )
        return Levels(
            names,
            window=self.curriculum_window,
            threshold=self.curriculum_threshold,
            mean=self.curriculum_window_mean,
            demotion_threshold=self.curriculum_demotion_threshold,
        )

    def most_draws(self) -> int:
        """`curriculum_max_draws` with its default filled in."""
        if self.curriculum_max_draws is not None:
            return self.curriculum_max_draws
        return 1 if self.curriculum_weighting == "uniform" else 4

    def signal_columns(self, rewards: list[str]) -> list[int]:
        """Places of the signal's rewards among the names of all rewards; `InputError` if one is not there, or named twice."""
        names = self.curriculum_signal
        if not names:
            answers = [name for name in rewards if name != "format"]
            names = ["accuracy"] if "accuracy" in rewards else answers[:1]
            if not names:
                raise InputError("--curriculum needs a reward that tells how good an answer is; there is only format.")
        if len(set(names)) < len(names):
            raise InputError(f"--curriculum_signal {' '.join(names)} names a reward twice: give each once.")
        unknown = [name for name in names if name not in rewards]
        if unknown:
            raise InputError(
                f"--curriculum_signal {unknown[0]} is none of the rewards; give some of {', '.join(rewards)}."
            )
        return [rewards.index(name) for name in names]


def default_of(one: dataclasses.Field):
    return one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
