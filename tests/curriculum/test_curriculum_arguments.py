"""The curriculum's flags: what goes together and what is refused."""

import re

import pytest

from open_r1_kivqa.curriculum import arguments, estimate
from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.errors import InputError


def test_names_of_choices_are_those_of_the_parts():
    assert set(arguments.ESTIMATES) == set(estimate.ESTIMATORS)
    assert set(arguments.WEIGHTINGS) == set(estimate.WEIGHTINGS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"curriculum": False, "curriculum_sigma": 0.3}, "--curriculum_sigma acts only with the curriculum"),
        ({"curriculum": False, "dynamic_sampling_rounds": 3}, "--dynamic_sampling_rounds acts only"),
        ({"curriculum_levels": "1,1"}, "equal"),
        ({"curriculum_levels": "1,hard"}, "'hard'"),
        ({"curriculum_window": 0}, "--curriculum_window 0"),
        ({"curriculum_window": 10**30}, f"--curriculum_window {10**30}"),
        ({"curriculum_threshold": 1.0}, "--curriculum_threshold 1.0"),
        ({"curriculum_window_mean": "median"}, "--curriculum_window_mean 'median'"),
        ({"curriculum_demotion_threshold": 0.6}, "--curriculum_demotion_threshold 0.6"),
        ({"curriculum_carry": 1.5}, "--curriculum_carry 1.5"),
        ({"curriculum_weighting": "hardest"}, "gaussian, variance, teaching, uniform"),
        ({"curriculum_sigma": 0.0}, "--curriculum_sigma 0.0"),
        ({"curriculum_sigma": 1e-200}, "--curriculum_sigma 1e-200"),
        ({"curriculum_sigma": 0.1, "curriculum_weighting": "teaching"}, "--curriculum_weighting is teaching"),
        ({"prop_alpha": 0.5}, "--prop_alpha 0.5 acts on the graph"),
        ({"prop_iterations": 3}, "--prop_iterations 3 acts on the graph"),
        ({"prop_epsilon": 0.1, "curriculum_graph": ""}, "--prop_epsilon 0.1 acts on the graph"),
        ({"curriculum_balance": "entity"}, "--curriculum_balance 'entity'"),
        ({"curriculum_signal_range": [1.0, 0.0]}, "--curriculum_signal_range 1.0 0.0"),
        ({"curriculum_half_life": 0.0}, "--curriculum_half_life 0.0"),
        ({"curriculum_estimate": "oracle"}, "posterior, paper"),
        ({"prop_alpha": 1.0}, "--prop_alpha 1.0"),
        ({"prop_iterations": 0}, "--prop_iterations 0"),
        ({"prop_epsilon": -1.0}, "--prop_epsilon -1.0"),
        ({"curriculum_snapshot_steps": -1}, "--curriculum_snapshot_steps -1"),
        ({"dynamic_sampling_rounds": 0}, "--dynamic_sampling_rounds 0"),
    ],
)
def test_refusals(flags, message):
    with pytest.raises(InputError, match=re.escape(message)):
        CurriculumArguments(**{"curriculum": True, **flags})


def test_levels_and_the_level_without_any():
    assert CurriculumArguments(curriculum=True).levels("retrieved").names == ("1", "2", "3", "4", "5", "retrieved")
    assert CurriculumArguments(curriculum=True, curriculum_levels="").levels("gold").names == ("gold",)


def test_the_signal_is_the_answer_reward():
    settings = CurriculumArguments(curriculum=True)
    assert settings.signal_columns(["format", "accuracy"]) == [1]
    assert settings.signal_columns(["format", "boxes"]) == [1]
    assert CurriculumArguments(curriculum=True, curriculum_signal=["b", "a"]).signal_columns(["a", "b"]) == [1, 0]
    with pytest.raises(InputError, match="--curriculum_signal c is none of the rewards; give some of a, b"):
        CurriculumArguments(curriculum=True, curriculum_signal=["c"]).signal_columns(["a", "b"])
    with pytest.raises(InputError, match="--curriculum_signal a a names a reward twice"):
        CurriculumArguments(curriculum=True, curriculum_signal=["a", "a"]).signal_columns(["a", "b"])
    with pytest.raises(InputError, match="only format"):
        settings.signal_columns(["format"])


def test_uniform_draws_each_row_once_in_an_epochs_worth():
    assert CurriculumArguments(curriculum=True).most_draws() == 4
    assert CurriculumArguments(curriculum=True, curriculum_weighting="uniform").most_draws() == 1
    assert CurriculumArguments(curriculum=True, curriculum_max_draws=2).most_draws() == 2


def test_what_the_levels_keep_from_acting_is_refused():
    """Levels of their own say what prompts show; and from a single one there is no way back."""
    several = CurriculumArguments(curriculum=True)
    with pytest.raises(InputError, match="--context_level gold has nothing to act on: --curriculum_levels 1,2,3"):
        several.levels("gold")
    assert CurriculumArguments(curriculum=True, curriculum_levels="").levels("gold").names == ("gold",)
    with pytest.raises(InputError, match="--curriculum_demotion_threshold has no level to go back to"):
        CurriculumArguments(curriculum=True, curriculum_levels="", curriculum_demotion_threshold=0.1)
