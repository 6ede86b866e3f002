"""Each rank writes a file of HDF5's, and reads that of its neighbour; prints the sum of all."""
import h5py
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
total = 0.0
for turn in range(12):
    mine = numpy.random.default_rng(world.rank + 100 * turn).random((1000, 1000))
    with h5py.File(f"slab{world.rank}.h5", "w") as f:
        f.create_dataset("slab", data=mine, chunks=(250, 250), compression="lzf")
    world.Barrier()
    with h5py.File(f"slab{(world.rank + 1) % world.size}.h5") as f:
        theirs = f["slab"][...]
    world.Barrier()
    both = numpy.empty_like(mine)
    world.Allreduce(mine + theirs, both)
    total += both.sum()
if world.rank == 0:
    print(f"sum {total:.6f}")
