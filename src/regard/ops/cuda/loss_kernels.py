"""The specification is ops/reference.py: `token_losses` and `disagreement`.

Triton kernels; training.py calls them. They overwrite logits with their gradient.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["smoothing"])
def loss_kernel(
    logits, losses, labels, smoothing, V, stride,
    GRADIENT: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """For one row of logits[n, stride], of which V are real: losses[n, 2], the smoothed loss and
    the negative log-likelihood; zeros if the label is -1. With GRADIENT the gradient, softmax -
    smoothed target, overwrites the logits, with zeros in the padding."""
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * stride
    label = tl.load(labels + row)
    counts = label >= 0
    chosen = tl.load(own + label, counts, 0.0).to(tl.float32)
    # Each lane has its own maximum and sum, so that there is no reduction within the loop.
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
    likelihood = normal - chosen
    loss = (1 - smoothing) * likelihood + smoothing * (normal - tl.sum(total, 0) / V)
    tl.store(losses + row * 2, tl.where(counts, loss, 0.0))
    tl.store(losses + row * 2 + 1, tl.where(counts, likelihood, 0.0))
    if GRADIENT:
        tl.debug_barrier()  # the logit of the label is read before the logits are overwritten
        even = tl.where(counts, smoothing / V, 0.0)
        normal = tl.where(counts, normal, float("inf"))
        for at in range(0, stride, DEPTH * LANES):
            v = at + lane
            x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
            grad = tl.where(v < V, tl.exp(x - normal) - even, 0.0)
            tl.store(own + v, grad.to(logits.dtype.element_ty), v < stride)
        tl.debug_barrier()
        grad = tl.exp(chosen - normal) - even - (1 - smoothing)
        tl.store(own + label, grad.to(logits.dtype.element_ty), counts)


@triton.jit
def normal_of(own, V, LANES: tl.constexpr):
    """The logarithm of the sum of exponentials of a row."""
    most = tl.full([LANES], -1e30, tl.float32)
    mass = tl.zeros([LANES], tl.float32)
    for at in range(0, V, LANES):
        v = at + tl.arange(0, LANES)
        x = tl.load(own + v, v < V, -float("inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        mass = mass * tl.exp(most - higher) + tl.exp(x - higher)
        most = higher
    highest = tl.max(most, 0)
    return highest + tl.log(tl.sum(mass * tl.exp(most - highest), 0))


@triton.jit
def disagreement_kernel(first, second, sums, counted, V, LANES: tl.constexpr):
    """For one row of logits[n, V] of two passes, p and q: sums[n], the mean of both divergences,
    (sum p log(p/q) + sum q log(q/p)) / 2; its gradients overwrite the logits. Zeros if the row is
    not counted."""
    row = tl.program_id(0).to(tl.int64)
    first += row * V
    second += row * V
    weight = tl.load(counted + row).to(tl.float32)
    normal, other = normal_of(first, V, LANES), normal_of(second, V, LANES)
    forth = tl.zeros([LANES], tl.float32)
    back = tl.zeros([LANES], tl.float32)
    for at in range(0, V, LANES):
        v = at + tl.arange(0, LANES)
        x = tl.load(first + v, v < V, 0.0).to(tl.float32) - normal
        y = tl.load(second + v, v < V, 0.0).to(tl.float32) - other
        forth += tl.where(v < V, tl.exp(x) * (x - y), 0.0)
        back += tl.where(v < V, tl.exp(y) * (y - x), 0.0)
    all_forth, all_back = tl.sum(forth, 0), tl.sum(back, 0)
    tl.store(sums + row, weight * 0.5 * (all_forth + all_back))
    half = 0.5 * weight
    for at in range(0, V, LANES):
        v = at + tl.arange(0, LANES)
        x = tl.load(first + v, v < V, 0.0).to(tl.float32) - normal
        y = tl.load(second + v, v < V, 0.0).to(tl.float32) - other
        p, q = tl.exp(x), tl.exp(y)
        grad = half * (p * (x - y - all_forth) + p - q)
        tl.store(first + v, grad.to(first.dtype.element_ty), v < V)
        grad = half * (q * (y - x - all_back) + q - p)
        tl.store(second + v, grad.to(second.dtype.element_ty), v < V)
