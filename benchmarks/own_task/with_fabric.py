import os
import sys

import task
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, stride=2)
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(16 * 6 * 6 + 1, 32)
        self.out = nn.Linear(32, 6)

    def forward(self, image, age):
        x = self.conv(image.permute(0, 3, 1, 2)).relu().flatten(1)
        x = self.dropout(torch.cat([x, age], dim=1))
        return self.out(self.hidden(x).relu())


def loader(data, batch, shuffle):
    (images, ages), classes = (map(torch.from_numpy, data[0]), torch.from_numpy(data[1]))
    return DataLoader(TensorDataset(images, ages, classes), batch, shuffle=shuffle)


def main(folder, devices):
    logger = TensorBoardLogger(folder)
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=devices, loggers=logger)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    batch = task.BATCH // devices
    train, test = fabric.setup_dataloaders(
        loader(task.TRAIN, batch, True), loader(task.TEST, batch, False)
    )
    state = {"model": model, "optimizer": optimizer, "epoch": 0, "best": 0.0, "waited": 0}
    path = f"{folder}/newest.ckpt"
    if os.path.exists(path):
        fabric.load(path, state)
    while state["epoch"] < task.EPOCHS and state["waited"] < task.PATIENCE:
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(state["epoch"])
        model.train()
        for image, age, label in train:
            loss = nn.functional.cross_entropy(model(image, age), label)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
        model.eval()
        accuracy = MeanMetric().to(fabric.device)
        with torch.no_grad():
            for image, age, label in test:
                accuracy.update((model(image, age).argmax(1) == label).float())
        found = float(accuracy.compute())
        state["epoch"] += 1
        fabric.log_dict({"loss": float(loss), "accuracy": found}, step=state["epoch"])
        print(f"epoch {state['epoch']}: {found:.3f}", flush=True)
        state["waited"] += 1
        if found > state["best"]:
            state["best"], state["waited"] = found, 0
            fabric.save(f"{folder}/best.ckpt", state)
        fabric.save(f"{path}.partial", state)
        if fabric.is_global_zero:
            os.replace(f"{path}.partial", path)
        fabric.barrier()
    if fabric.is_global_zero:
        task.report([p.detach().numpy() for p in model.parameters()], found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
