"""Two ranks of PyTorch's DistributedDataParallel over gloo; prints what the loss has come to."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(7)
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('meeting')}", rank=rank, world_size=2)
layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
steps = torch.optim.Adam(model.parameters(), lr=1e-3)
numbers = torch.Generator().manual_seed(rank)
given = torch.randn(128, 256, generator=numbers)
wanted = torch.randn(128, 16, generator=numbers)
for _ in range(30):
    steps.zero_grad()
    loss = torch.nn.functional.mse_loss(model(given), wanted)
    loss.backward()
    steps.step()
total = loss.detach().clone()
dist.all_reduce(total)
if rank == 0:
    print(f"loss {total.item():.4f}")
dist.destroy_process_group()
