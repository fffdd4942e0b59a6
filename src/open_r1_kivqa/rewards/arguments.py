"""Flags of the rewards, for TRL's parser like the others in `arguments.py`: `JudgeArguments` for evaluation, `RewardArguments` for training."""

import dataclasses
import math
from dataclasses import dataclass

from ..errors import InputError
from ..flags import flag, refuse_below
from ..remote import MOST_OPEN, check_key_name, check_url, read_request

LONGEST_NGRAM = 50
READ_BY = {
    "cosine": ["length"],
    "right": ["length", "hard_format"],
    "repetition": ["repetition"],
}  # a flag's first word: rewards


@dataclass
class JudgeArguments:
    """The language model that scores the rows of method `llm`. All flags but `judge_url` act only together with it."""

    judge_url: str | None = flag(
        None,
        "Base URL of the endpoint that judges rows of method llm, as http://localhost:8000/v1: any that speaks OpenAI's chat completions. See docs/llm_judge.md.",
    )
    judge_model: str | None = flag(None, "Name of the judge's model at that endpoint.")
    judge_api_key_env: str | None = flag(
        None, "NAME of the environment variable that holds the endpoint's key, never the key itself. Default: no key."
    )
    judge_timeout: float = flag(30.0, "Seconds that the judge may take for one try.")
    judge_retries: int = flag(
        3, "More tries after a failed one (no connection, too late, status 408, 409, 429 or 5xx), with growing waits."
    )
    judge_concurrency: int = flag(16, "Most questions that one process has open at the judge at the same time.")
    judge_cache: str | None = flag(
        None, "Folder that keeps verdicts for later runs; processes and machines may share it. Default: memory only."
    )
    judge_max_answer_chars: int = flag(1000, "The judge sees at most so many characters of an answer.")
    judge_request: dict | str | None = flag(
        None,
        'More fields of each request as a JSON object; null takes one out. Set beforehand are {"temperature": 0, "max_tokens": 16}, too few for a judge that reasons.',
    )

    def __post_init__(self):
        if self.judge_url is None:
            self._refuse_flags_without_judge()
            return
        check_url("judge_url", self.judge_url)
        if not self.judge_model:
            raise InputError("--judge_model is missing: name the model that --judge_url serves and that judges.")
        if self.judge_api_key_env is not None:
            check_key_name("judge_api_key_env", self.judge_api_key_env)
        if not 0 < self.judge_timeout < math.inf:
            raise InputError(f"--judge_timeout {self.judge_timeout}: a number of seconds above 0 is wanted.")
        refuse_below(self, 0, "judge_retries")
        refuse_below(self, 1, "judge_concurrency", "judge_max_answer_chars")
        if self.judge_concurrency > MOST_OPEN:
            raise InputError(f"--judge_concurrency {self.judge_concurrency}: at most {MOST_OPEN} are possible.")
        self.judge_request = read_request("judge_request", self.judge_request)

    def _refuse_flags_without_judge(self):
        for one in dataclasses.fields(JudgeArguments):
            if getattr(self, one.name) != one.default:
                raise InputError(f"--{one.name} acts only with a judge: add --judge_url, or leave it out.")


@dataclass
class RewardArguments(JudgeArguments):
    """The judge, and the settings of the rewards `length`, `hard_format` and `repetition`."""

    cosine_max_tokens: int = flag(1024, "Reward length: the completion's tokens at which its curve ends.")
    cosine_correct: list[float] = flag(
        [1.0, 0.5], "Reward length of a right answer: with no token, and with --cosine_max_tokens or more."
    )
    cosine_wrong: list[float] = flag(
        [-0.5, 0.0], "Reward length of a wrong answer: with no token, and with --cosine_max_tokens or more."
    )
    right_threshold: float = flag(
        0.5,
        "Rewards length and hard_format: an answer is right if its accuracy is at least this (boxes score between 0 and 1).",
    )
    repetition_ngram: int = flag(6, "Reward repetition: words that follow each other and are counted as one.")

    def __post_init__(self):
        super().__post_init__()
        refuse_below(self, 1, "cosine_max_tokens")
        for name in ("cosine_correct", "cosine_wrong"):
            ends = getattr(self, name)
            if len(ends) != 2 or not all(map(math.isfinite, ends)):
                raise InputError(
                    f"--{name} {' '.join(map(str, ends))}: two finite numbers are wanted, for no token and for the most."
                )
        if max(self.cosine_wrong) > min(self.cosine_correct):
            raise InputError(
                f"--cosine_wrong reaches {max(self.cosine_wrong)} and --cosine_correct {min(self.cosine_correct)}: a wrong answer must never earn more than a right one."
            )
        if not 0 < self.right_threshold <= 1:
            raise InputError(f"--right_threshold {self.right_threshold}: a score above 0, at most 1, is wanted.")
        if not 1 <= self.repetition_ngram <= LONGEST_NGRAM:
            raise InputError(f"--repetition_ngram {self.repetition_ngram}: 1 to {LONGEST_NGRAM} words are wanted.")

    def refuse_idle(self, reward_funcs: list[str]) -> None:
        """InputError for a setting of a reward that `reward_funcs` does not name."""
        plain = RewardArguments()
        for one in dataclasses.fields(self):
            rewards = READ_BY.get(one.name.partition("_")[0])
            idle = rewards and not set(rewards) & set(reward_funcs)
            if idle and getattr(self, one.name) != getattr(plain, one.name):
                raise InputError(
                    f"--{one.name} acts only with the reward {' or '.join(rewards)}: add it to --reward_funcs, or leave it out."
                )
