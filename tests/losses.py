"""Losses as people write them, and what accumulation should make of each, computed without accumlint.

Each is an expression over the `logits` of a micro-batch, its `labels`, `values` (numbers for each logit), `weights`
(one for each row), and the `model`.
"""

from __future__ import annotations

from typing import Any

STEPS = 4

LOSSES: dict[str, str] = {
    "cross-entropy": "F.cross_entropy(logits, labels)",
    "half of it": "0.5 * F.cross_entropy(logits, labels)",
    "label smoothing": "F.cross_entropy(logits, labels, label_smoothing=0.1)",
    "KL batchmean": "F.kl_div(logits.log_softmax(-1), values.softmax(-1), reduction='batchmean')",
    "KL mean": "F.kl_div(logits.log_softmax(-1), values.softmax(-1), reduction='none').mean()",
    "distillation": "0.7 * 9 * F.kl_div((logits / 3).log_softmax(-1), (values / 3).softmax(-1),"
    " reduction='batchmean') + 0.3 * F.cross_entropy(logits, labels)",
    "focal": "((1 - torch.exp(-F.cross_entropy(logits, labels, reduction='none'))) ** 2"
    " * F.cross_entropy(logits, labels, reduction='none')).mean()",
    "focal of probabilities": "(-(1 - logits.softmax(-1).gather(1, labels[:, None])) ** 2"
    " * logits.softmax(-1).gather(1, labels[:, None]).log()).mean()",
    "root of the mean square": "torch.sqrt(F.mse_loss(logits, values))",
    "weights of samples": "(weights * F.cross_entropy(logits, labels, reduction='none')).mean()",
    "weights that sum to 1": "(weights * F.cross_entropy(logits, labels, reduction='none')).sum() / weights.sum()",
    "min-SNR": "(F.mse_loss(logits, values, reduction='none').mean(dim=1) * weights.clamp(max=0.5) / weights).mean()",
    "binary": "F.binary_cross_entropy_with_logits(logits, values.sigmoid())",
    "Huber": "F.huber_loss(logits, values)",
    "absolute, by hand": "(logits - values).abs().mean()",
    "log-cosh, by hand": "torch.log(torch.cosh(logits - values)).mean()",
    "with a penalty": "F.cross_entropy(logits, labels) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())",
    "two losses": "F.cross_entropy(logits, labels) + 0.3 * F.mse_loss(logits, values)",
    "with an entropy": "F.cross_entropy(logits, labels)"
    " + 0.1 * (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()",
    "contrastive": "F.cross_entropy(logits @ logits.T / 0.5, torch.arange(len(logits)))",
    "weights from the network": "(F.cross_entropy(logits, labels, reduction='none')"
    " * F.cross_entropy(logits, labels, reduction='none').detach().softmax(0)).sum()",
    "a smooth maximum": "torch.logsumexp(F.cross_entropy(logits, labels, reduction='none'), 0)",
    "label smoothing, by hand": "(-0.9 * logits.log_softmax(-1).gather(1, labels[:, None])"
    " - 0.1 * logits.log_softmax(-1).mean(-1, keepdim=True)).mean()",
    "hinge, by hand": "torch.clamp(1 - values.sign() * logits, min=0).mean()",
    "pairs with a margin": "((labels > 0) * (logits - values).pow(2).sum(-1)"
    " + (labels == 0) * F.relu(1 - (logits - values).pow(2).sum(-1))).mean()",
    "triplets": "F.triplet_margin_loss(logits, values, values.roll(1, 0), margin=0.3)",
    "symmetric contrastive": "0.5 * (F.cross_entropy(logits @ values.T, torch.arange(len(logits)))"
    " + F.cross_entropy(values @ logits.T, torch.arange(len(logits))))",
    "dice": "1 - 2 * (logits.sigmoid() * values.sigmoid()).sum()"
    " / (logits.sigmoid().sum() + values.sigmoid().sum())",
    "a partial likelihood": "-((logits[:, 0] - torch.logcumsumexp(logits[:, 0], 0)) * weights).sum() / weights.sum()",
    "a clipped ratio": "-torch.min(logits[:, 0].exp() * values[:, 0],"
    " logits[:, 0].exp().clamp(0.8, 1.2) * values[:, 0]).mean()",
    "preferences": "-F.logsigmoid(0.1 * (logits[:, 0] - logits[:, 1])).mean()",
    "with a term for balance": "F.cross_entropy(logits, labels) + 0.01 * logits.softmax(-1).mean(0).pow(2).sum()",
}


def truth(expression: str, model: Any, batches: Any, divisor: float) -> tuple[float, float]:
    """How far what a window applies is from the mean of its micro-batches' gradients, and the factor between them.

    `divisor` is what the loop divides each loss by.
    """
    import torch
    import torch.nn.functional as F

    parameters = list(model.parameters())
    gradients: list[Any] = []
    for inputs, labels, values, weights in batches:
        names = {
            "torch": torch, "F": F, "model": model, "logits": model(inputs),
            "labels": labels, "values": values, "weights": weights,
        }  # fmt: skip
        loss = eval(expression, names)
        found = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([g.flatten() for g in found]))
    due = torch.stack(gradients).mean(0)
    applied = torch.stack([g / divisor for g in gradients]).sum(0)
    size = float(due @ due)
    off = applied - due
    return float(off @ off / size) ** 0.5, float(applied @ due / size)
