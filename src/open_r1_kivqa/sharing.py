"""Flags by which the work on a prompt is shared by its completions (docs/performance.md)."""

from dataclasses import dataclass

from .errors import InputError
from .flags import flag, refuse_below


@dataclass
class SharingArguments:
    """A part of `VLMGRPOConfig`."""

    shared_prefix: bool = flag(
        True,
        "Compute a prompt, images included, once for all of its completions in a micro-batch (docs/performance.md). Same results; where a family or its attention doesn't allow it, TRL's own pass is taken.",
    )
    shared_prefix_max_tokens: int | None = flag(
        None, "With --shared_prefix, at most so many tokens in one pass. Default: a micro-batch in one pass."
    )
    keep_groups: bool | None = flag(
        None,
        "Keep the completions of a prompt together when a generation batch is split into micro-batches. Default: as --shared_prefix.",
    )
    shared_prefill: bool = flag(
        True,
        "Where Hugging Face's generate makes the completions, compute a prompt, images included, once for all of them. vLLM does so itself.",
    )
    reuse_image_features: bool | None = flag(
        None,
        "Run vision tower and projector once on each picture of a generation batch and keep what they give for all passes of that batch. Default: on where both are frozen (--freeze_vision_modules, --freeze_projector; adapters count as not frozen) and whole in each process, so not under ZeRO-3 and FSDP. Costs memory: for each picture of a process's batch its pixels and tokens x width of the language model.",
    )

    def check_sharing(self) -> None:
        """InputError for a limit that nothing uses; sets what has no value of its own."""
        if self.shared_prefix_max_tokens is not None and not self.shared_prefix:
            raise InputError("--shared_prefix_max_tokens has nothing to act on without --shared_prefix: leave one out.")
        refuse_below(self, 1, "shared_prefix_max_tokens")
        if self.keep_groups is None:
            self.keep_groups = self.shared_prefix

    def check_passes(self) -> None:
        """InputError for reentrant checkpointing with several passes in one backward, once TRL has read its flags: it hands over a weight's gradient pass by pass, of which ZeRO-3 keeps one and ZeRO-2 and DDP stop."""
        reentrant = self.gradient_checkpointing and (self.gradient_checkpointing_kwargs or {}).get("use_reentrant")
        if reentrant and self.shared_prefix_max_tokens is not None:
            raise InputError(
                "--shared_prefix_max_tokens makes several passes, whose gradients reentrant checkpointing would lose among ranks: "
                "leave use_reentrant out of --gradient_checkpointing_kwargs, or leave out the limit."
            )
