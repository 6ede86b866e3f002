//! MPI programs, and what starts them.

#[path = "../launchers.rs"]
mod launchers;
#[path = "../mpi4py.rs"]
mod mpi4py;
#[path = "../slurm.rs"]
mod slurm;
#[path = "../stage.rs"]
mod stage;
