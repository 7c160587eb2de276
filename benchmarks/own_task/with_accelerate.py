import os
import shutil
import sys

import task
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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


class Progress:
    def __init__(self):
        self.epoch, self.best, self.waited = 0, 0.0, 0

    def state_dict(self):
        return dict(self.__dict__)

    def load_state_dict(self, state):
        self.__dict__.update(state)


def loader(data, batch, shuffle):
    (images, ages), classes = (map(torch.from_numpy, data[0]), torch.from_numpy(data[1]))
    return DataLoader(TensorDataset(images, ages, classes), batch, shuffle=shuffle)


def main(folder, devices):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
    accelerator.init_trackers("logs")
    set_seed(1)
    model, batch, progress = Model(), task.BATCH // devices, Progress()
    model, optimizer, train, test = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        loader(task.TRAIN, batch, True),
        loader(task.TEST, batch, False),
    )
    accelerator.register_for_checkpointing(progress)
    newest, partial, old = (f"{folder}/{name}" for name in ("newest", "partial", "old"))
    if os.path.exists(newest):
        accelerator.load_state(newest)
    while progress.epoch < task.EPOCHS and progress.waited < task.PATIENCE:
        train.set_epoch(progress.epoch)
        model.train()
        for image, age, label in train:
            loss = nn.functional.cross_entropy(model(image, age), label)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        right, count = 0, 0
        with torch.no_grad():
            for image, age, label in test:
                found, known = accelerator.gather_for_metrics((model(image, age), label))
                right += int((found.argmax(1) == known).sum())
                count += len(known)
        progress.epoch += 1
        accelerator.log({"loss": float(loss), "accuracy": right / count}, step=progress.epoch)
        accelerator.print(f"epoch {progress.epoch}: {right / count:.3f}", flush=True)
        progress.waited += 1
        if right / count > progress.best:
            progress.best, progress.waited = right / count, 0
            accelerator.save_model(model, f"{folder}/best")
        accelerator.save_state(partial)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            if os.path.exists(newest):
                os.rename(newest, old)
            os.rename(partial, newest)
            shutil.rmtree(old, ignore_errors=True)
        accelerator.wait_for_everyone()
    accelerator.end_training()
    if accelerator.is_main_process:
        weights = [p.detach().numpy() for p in model.parameters()]
        task.report(weights, right / count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
