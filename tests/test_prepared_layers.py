"""Layers that Accelerate wraps without the model that holds them are trained past their wrapper."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run

SCRIPT = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import UNet2DConditionModel
from diffusers.loaders import AttnProcsLayers


def main(args, loader):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    unet = UNet2DConditionModel.from_pretrained(args.name)
    lora_layers = AttnProcsLayers(unet.attn_processors)
    optimizer = torch.optim.AdamW(lora_layers.parameters())
    lora_layers, optimizer, loader = accelerator.prepare(lora_layers, optimizer, loader)
    with torch.no_grad():
        for batch in loader:
            unet(batch["x"], batch["t"])
    for batch in loader:
        with accelerator.accumulate(unet):
            predicted = unet(batch["x"], batch["t"]).sample
            accelerator.backward(F.mse_loss(predicted, batch["y"]))
            optimizer.step()
            optimizer.zero_grad()
"""
# A change of the script, and the line of the finding, if any.
CHANGES: dict[str, tuple[str, str, int]] = {
    "layers of diffusers": ("", "", 19),
    "a list of layers": ("AttnProcsLayers(unet.attn_processors)", "torch.nn.ModuleList(unet.blocks)", 19),
    "the model is prepared as well": (
        "lora_layers, optimizer, loader = accelerator.prepare(lora_layers, optimizer, loader)",
        "lora_layers, unet, optimizer, loader = accelerator.prepare(lora_layers, unet, optimizer, loader)",
        0,
    ),
    "the layers are not prepared": (
        "lora_layers, optimizer, loader = accelerator.prepare(lora_layers, optimizer, loader)",
        "optimizer, loader = accelerator.prepare(optimizer, loader)",
        0,
    ),
    "a wrapper that is called": (
        "predicted = unet(", "lora_layers(batch)\n            predicted = unet(", 0,
    ),
    "a class that makes something else of the part": ("AttnProcsLayers(unet", "copied(unet", 0),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), CHANGES.values(), ids=CHANGES)
def test_layers_that_are_prepared_alone_are_told_at_the_forward(
    run: Run, old: str, new: str, line: int
) -> None:
    Path("train.py").write_text(SCRIPT.replace(old, new) if old else SCRIPT)
    told = run("check", "--isolated", "--select", "ACC305", "train.py").out.splitlines()
    found = [text for text in told if "ACC305" in text]
    assert [text.split(":")[1] for text in found] == [str(line)] * bool(line)
    assert all("`lora_layers` was prepared and `unet`" in text for text in found)
