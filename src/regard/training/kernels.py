"""The Triton kernel of the loss (loss.py calls it): logits in, their slope out, in place."""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["smoothing"])
def loss_kernel(
    logits, found, labels, smoothing, V, stride,
    SLOPE: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Of one row of logits[n, stride], of which V are real: found[n, 2], the smoothed loss and the
    negative log-likelihood; zeros, if its label is -1. With SLOPE the gradient, softmax - smoothed
    target, takes the place of the logits, and zeros that of what is not real."""
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * stride
    label = tl.load(labels + row)
    asked = label >= 0
    wanted = tl.load(own + label, asked, 0.0).to(tl.float32)
    # Every lane keeps its own maximum and sum, so that nothing is waited for on the way.
    lane = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    most = tl.full([LANES], -1e30, tl.float32)
    mass = tl.zeros([LANES], tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for at in range(0, V, DEPTH * LANES):
        v = at + lane
        x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(x, 0))
        mass = mass * tl.exp(most - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
        total += tl.sum(tl.where(v < V, x, 0.0), 0)
        most = higher
    highest = tl.max(most, 0)
    normal = highest + tl.log(tl.sum(mass * tl.exp(most - highest), 0))
    likelihood = normal - wanted
    loss = (1 - smoothing) * likelihood + smoothing * (normal - tl.sum(total, 0) / V)
    tl.store(found + row * 2, tl.where(asked, loss, 0.0))
    tl.store(found + row * 2 + 1, tl.where(asked, likelihood, 0.0))
    if SLOPE:
        tl.debug_barrier()  # the label's logit is read before any is written
        even = tl.where(asked, smoothing / V, 0.0)
        normal = tl.where(asked, normal, float("inf"))
        for at in range(0, stride, DEPTH * LANES):
            v = at + lane
            x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
            slope = tl.where(v < V, tl.exp(x - normal) - even, 0.0)
            tl.store(own + v, slope.to(logits.dtype.element_ty), v < stride)
        tl.debug_barrier()
        slope = tl.exp(wanted - normal) - even - (1 - smoothing)
        tl.store(own + label, slope.to(logits.dtype.element_ty), asked)
