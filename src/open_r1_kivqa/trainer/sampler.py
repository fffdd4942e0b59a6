"""The order in which rows are drawn."""

from collections.abc import Callable

from trl.trainer.utils import RepeatSampler


class EpochRepeatSampler(RepeatSampler):
    """TRL's `RepeatSampler` whose order depends on (seed, epoch) alone, so a resumed run draws what the unbroken run would have drawn.

    The stock sampler advances one generator from epoch to epoch. A resumed process starts that generator anew and replays epoch 0's order in every later epoch. Epoch 0 is the stock order, bit for bit.

    Args:
        epoch: tells the epoch in hand (0, 1, ...). It is asked at each pass over the data: accelerate does not carry `set_epoch` through to a sampler under `skip_first_batches` on several ranks.
    """

    def __init__(self, *args, epoch: Callable[[], int], **kwargs):
        super().__init__(*args, **kwargs)
        self.epoch = epoch

    def __iter__(self):
        if self.shuffle:
            self.generator.manual_seed(self.seed + self.epoch())
        return super().__iter__()
