"""Training scripts as people write them, each right and wrong in one place.

`SCRIPTS` has their texts, with `<<right|wrong>>` in that place, and the factor on the gradient of the wrong one.
"""

from __future__ import annotations

import re

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

"""
SCRIPTS: dict[str, tuple[str, float]] = {}
_PLACE = re.compile(r"<<(.*?)\|(.*?)>>")


def written(name: str, right: bool) -> str:
    """The text of a script."""
    text, _ = SCRIPTS[name]
    return HEAD + _PLACE.sub(lambda found: found[1 if right else 2], text)


def _script(name: str, factor: float, text: str) -> None:
    SCRIPTS[name] = text, factor


_script(
    "a student and its teacher, settings from the command line",
    4,
    """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--temperature", type=float, default=2.0)
args = parser.parse_args()

student = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
teacher = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).eval()
train_set = TensorDataset(torch.randn(256, 20), torch.randint(0, 5, (256,)))
train_loader = DataLoader(train_set, batch_size=8, drop_last=True)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)


def kd_loss(student_logits, teacher_logits, labels):
    T = args.temperature
    soft = F.kl_div(
        F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
    ) * (T * T)
    return 0.5 * soft + 0.5 * F.cross_entropy(student_logits, labels)


for epoch in range(2):
    for step, (x, y) in enumerate(train_loader):
        with torch.no_grad():
            t_logits = teacher(x)
        loss = kd_loss(student(x), t_logits, y)<< / args.accum|>>
        loss.backward()
        if (step + 1) % args.accum == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
""",
)
_script(
    "pairs in a function whose argument is the window",
    4,
    """
class ContrastiveLoss(nn.Module):
    def forward(self, a, b, label):
        d = F.pairwise_distance(a, b)
        return torch.mean((1 - label) * d.pow(2) + label * torch.clamp(1.0 - d, min=0.0).pow(2))


def train_siamese(net, loader, optimizer, steps=4):
    criterion = ContrastiveLoss()
    for i, (img1, img2, label) in enumerate(loader):
        loss = criterion(net(img1), net(img2), label)<< / steps|>>
        loss.backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
)
_script(
    "a window listed beforehand, tokens of all ranks",
    1 / 2,
    """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class LM(nn.Module):
    def __init__(self, vocab=40, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.emb(ids))


def batches(n):
    for _ in range(n):
        ids = torch.randint(0, 40, (4, 12))
        yield ids, ids.masked_fill(torch.rand(ids.shape) < 0.4, -100)


def main(accum=4):
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = batches(40)
    for update in range(10):
        window = [next(stream) for _ in range(accum)]
        n_tokens = sum((labels != -100).sum() for _, labels in window)
        dist.all_reduce(n_tokens)
        for k, (ids, labels) in enumerate(window):
            model.require_backward_grad_sync = k == accum - 1
            logits = model(ids)
            loss = F.cross_entropy(logits.view(-1, 40), labels.view(-1), ignore_index=-100, reduction="sum")
            loss = loss<< * world|>> / n_tokens
            loss.backward()
        opt.step()
        opt.zero_grad()
""",
)
_script(
    "survival, divided by the events of a micro-batch",
    4,
    """
def cox_ph_loss(risk, time, event):
    order = torch.argsort(time, descending=True)
    risk, event = risk[order], event[order]
    return -((risk - torch.logcumsumexp(risk, dim=0)) * event).sum() / event.sum().clamp(min=1)


net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
optim = torch.optim.Adam(net.parameters(), lr=1e-3)
loader = DataLoader(
    TensorDataset(torch.randn(320, 12), torch.rand(320), torch.randint(0, 2, (320,)).float()), batch_size=20
)
n_acc = 4
for epoch in range(2):
    for i, (x, t, e) in enumerate(loader, start=1):
        loss = cox_ph_loss(net(x).squeeze(-1), t, e)<<.div(n_acc)|>>
        loss.backward()
        if i % n_acc == 0:
            optim.step()
            optim.zero_grad()
""",
)
_script(
    "a class with a step and a counter",
    4,
    """
class Trainer:
    def __init__(self, model, dataset, accumulation_steps=4):
        self.model = model
        self.accumulation_steps = accumulation_steps
        self.loader = DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.micro = 0

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)<< / self.accumulation_steps|>>
        loss.backward()
        self.micro += 1
        return loss.detach()

    def train(self):
        for epoch in range(2):
            for batch in self.loader:
                self.training_step(batch)
                if self.micro % self.accumulation_steps == 0:
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()


if __name__ == "__main__":
    ds = TensorDataset(torch.randn(256, 20), torch.randint(0, 5, (256,)))
    Trainer(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)), ds).train()
""",
)
_script(
    "two views of a batch",
    8,
    """
def info_nce(z1, z2, temperature=0.1):
    logits = z1 @ z2.t() / temperature
    labels = torch.arange(z1.size(0), device=z1.device)
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


def main(model, loader, optimizer, accum_steps=8):
    for it, (x,) in enumerate(loader):
        v1 = x + 0.1 * torch.randn_like(x)
        v2 = x + 0.1 * torch.randn_like(x)
        loss = info_nce(model(v1), model(v2))<< / accum_steps|>>
        loss.backward()
        if (it + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
)
_script(
    "noise, weighed by its step, from an endless loader",
    2,
    """
class Denoiser(nn.Module):
    def __init__(self, dim=16, steps=100):
        super().__init__()
        self.t_emb = nn.Embedding(steps, dim)
        self.net = nn.Sequential(nn.Linear(2 * dim, 64), nn.SiLU(), nn.Linear(64, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.t_emb(t)], dim=-1))


alphas_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), dim=0)


def p_losses(model, x0, gamma=5.0):
    t = torch.randint(0, 100, (x0.size(0),))
    noise = torch.randn_like(x0)
    ab = alphas_bar[t].unsqueeze(-1)
    eps = model(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t)
    loss = F.mse_loss(eps, noise, reduction="none").mean(dim=1)
    snr = alphas_bar[t] / (1 - alphas_bar[t])
    return (torch.clamp(snr, max=gamma) / snr * loss).mean()


def train(num_steps=20, gradient_accumulate_every=2):
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), lr=8e-5)
    dl = DataLoader(torch.randn(512, 16), batch_size=16, shuffle=True)

    def cycle(dl):
        while True:
            for data in dl:
                yield data

    data_iter = cycle(dl)
    for step in range(num_steps):
        for _ in range(gradient_accumulate_every):
            loss = p_losses(model, next(data_iter))<< / gradient_accumulate_every|>>
            loss.backward()
        opt.step()
        opt.zero_grad()


train()
""",
)
_script(
    "a count that starts again, shares by sizes",
    4,
    """
BATCH_SIZE = 32
MICRO = 8
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(256, 20), torch.randint(0, 5, (256,))), batch_size=MICRO)
accum_count = 0
for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)<< * MICRO / BATCH_SIZE|>>
        loss.backward()
        accum_count += 1
        if accum_count == BATCH_SIZE // MICRO:
            optimizer.step()
            optimizer.zero_grad()
            accum_count = 0
""",
)
_script(
    "a boundary by whole division",
    4,
    """
def fit(model, loader, optimizer, accum=4):
    done = 0
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x).squeeze(-1), y)<< / accum|>>
        loss.backward()
        if (i + 1) // accum > done:
            done = (i + 1) // accum
            optimizer.step()
            optimizer.zero_grad()
""",
)
_script(
    "chunks of a batch",
    4,
    """
def train_step(model, optimizer, x, y, n_chunks=4):
    optimizer.zero_grad()
    for xc, yc in zip(x.chunk(n_chunks), y.chunk(n_chunks)):
        loss = F.cross_entropy(model(xc), yc)<< * (len(xc) / len(x))|>>
        loss.backward()
    optimizer.step()


model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(256, 20), torch.randint(0, 5, (256,))), batch_size=64):
    train_step(model, optimizer, x, y)
""",
)
_script(
    "Lightning's manual optimisation",
    4,
    """
import lightning as L


class LitModel(L.LightningModule):
    def __init__(self, accumulate=4):
        super().__init__()
        self.automatic_optimization = False
        self.accumulate = accumulate
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss<< / self.accumulate|>>)
        if (batch_idx + 1) % self.accumulate == 0:
            opt.step()
            opt.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
""",
)
_script(
    "the last batch steps, divided by its own window",
    4,
    """
def run_epoch(model, loader, optimizer, scheduler, accum):
    n = len(loader)
    for i, (x, y) in enumerate(loader):
        size = min(accum, n - i // accum * accum)
        loss = F.cross_entropy(model(x), y)<< / size|>>
        loss.backward()
        if (i + 1) % accum == 0 or i + 1 == n:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
)
