"""Own schedule: cosine with restarts (Loshchilov and Hutter 2017), each period twice as long."""

import math

import regard
from regard.config.sections import TrainingConfig
from regard.training.optimiser import learning_rate


def cosine_with_restarts(step, config):
    """The learning rate of a step after the warm-up; config is the section `training`."""
    time, period = step - config.warmup, 200
    while time >= period:
        time, period = time - period, 2 * period
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * time / period))


regard.register_schedule("restarts", cosine_with_restarts)
training = TrainingConfig(schedule="restarts", learning_rate=1e-3, warmup=100, steps=1500)
print([round(learning_rate(step, training), 6) for step in (50, 100, 200, 299, 300, 500)])
