from trl.trainer.utils import RepeatSampler

from open_r1_kivqa.trainer.sampler import EpochRepeatSampler

SHAPE = {"mini_repeat_count": 2, "batch_size": 3, "repeat_count": 2, "shuffle": True, "seed": 5}


def test_epoch_zero_is_the_stock_order():
    assert list(EpochRepeatSampler(range(7), epoch=lambda: 0, **SHAPE)) == list(RepeatSampler(range(7), **SHAPE))


def test_a_new_sampler_draws_epoch_two_as_one_that_went_through_all():
    """The stock sampler fails this: a new one replays epoch 0."""
    epochs = iter(range(3))
    through = EpochRepeatSampler(range(7), epoch=lambda: next(epochs), **SHAPE)
    orders = [list(through) for _ in range(3)]
    resumed = EpochRepeatSampler(range(7), epoch=lambda: 2, **SHAPE)
    assert list(resumed) == orders[2]
    assert orders[0] != orders[1] != orders[2]


def test_groups_stay_together():
    order = list(EpochRepeatSampler(range(7), epoch=lambda: 1, **SHAPE))
    assert (
        len(order) == 2 * 2 * 6
    )  # two chunks of three prompts, twice in each, two rollouts each; the seventh is dropped
    assert order[0::2] == order[1::2]
    assert order[:6] == order[6:12]
