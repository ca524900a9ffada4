"""The Triton kernel of the loss (loss.py calls it): logits in, their slope out, in place."""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["smoothing"])
def loss_kernel(
    logits, found, labels, smoothing, V, stride, SLOPE: tl.constexpr, BLOCK: tl.constexpr
):
    """Of one row of logits[n, stride], of which V are real: found[n, 2], the smoothed loss and the
    negative log-likelihood. With SLOPE its gradient, softmax - smoothed target, takes the place of
    the logits, and zeros that of what is not real."""
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * stride
    label = tl.load(labels + row)
    wanted = tl.load(own + label).to(tl.float32)
    most, mass, total = -float("inf"), 0.0, 0.0
    for at in range(0, V, BLOCK):
        v = at + tl.arange(0, BLOCK)
        x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(x, 0))
        mass = mass * tl.exp(most - higher) + tl.sum(tl.exp(x - higher), 0)
        total += tl.sum(tl.where(v < V, x, 0.0), 0)
        most = higher
    normal = most + tl.log(mass)
    likelihood = normal - wanted
    loss = (1 - smoothing) * likelihood + smoothing * (normal - total / V)
    tl.store(found + row * 2, loss)
    tl.store(found + row * 2 + 1, likelihood)
    if SLOPE:
        tl.debug_barrier()  # the label's logit is read before any is written
        for at in range(0, stride, BLOCK):
            v = at + tl.arange(0, BLOCK)
            x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
            slope = tl.exp(x - normal) - smoothing / V - tl.where(v == label, 1 - smoothing, 0.0)
            slope = tl.where(v < V, slope, 0.0).to(logits.dtype.element_ty)
            tl.store(own + v, slope, v < stride)
