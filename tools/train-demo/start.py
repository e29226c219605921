"""Master weights from an exported folder, so that a model can be trained further after its checkpoint is gone.

An export keeps a matrix as trits and one scale. Master weights that round to the same trits are drawn from a normal
distribution, so that they are as far from the rounding thresholds as those of a trained model.
"""

import torch
from safetensors.torch import load_file

from model import BitNet

STD_OF_MEAN = 1.2533  # a normal distribution's standard deviation, over the mean of its absolute values


def unpack(packed):
    """The inverse of `export.pack`: [rows/4][columns] bytes -> [rows][columns] of -1..1."""
    return torch.cat([(packed >> (2 * i) & 3) for i in range(4)]).float() - 1


def spread(trits, scale):
    """Master weights that round to `trits` with the scale `scale`, which is the mean of their absolute values."""
    normal = torch.distributions.Normal(0, STD_OF_MEAN)
    # Thresholds are at half a scale. Each weight is drawn from the range that rounds to its trit.
    low = normal.cdf(torch.tensor([-9.0, -0.499, 0.501]))[trits.long() + 1]
    high = normal.cdf(torch.tensor([-0.501, 0.499, 9.0]))[trits.long() + 1]
    values = normal.icdf((low + (high - low) * torch.rand(trits.shape)).clamp(1e-4, 1 - 1e-4))
    # What lies beyond the thresholds is stretched until the mean is the scale.
    outer = trits != 0
    beyond = values[outer].abs() - 0.501
    stretch = (trits.numel() - values[~outer].abs().sum() - 0.501 * outer.sum()) / beyond.sum()
    values[outer] = trits[outer] * (0.501 + stretch * beyond)
    return values * scale


def from_export(folder, config):
    """A `BitNet` of `config` that computes what the folder's model computes."""
    tensors = load_file(folder / "model.safetensors")
    model = BitNet(config)
    for name, value in model.state_dict().items():
        scale = tensors.get(name + "_scale")
        value.copy_(tensors[name] if scale is None else spread(unpack(tensors[name]), scale.float()))
    return model
