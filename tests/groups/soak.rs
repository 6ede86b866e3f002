//! What tries to break it: for a moment in tests, for hours in `make soak`.

#[path = "../soak/account.rs"]
mod account;
#[path = "../soak/adapters.rs"]
mod adapters;
#[path = "../soak/checked.rs"]
mod checked;
#[path = "../soak/cluster.rs"]
mod cluster;
#[path = "../soak/death.rs"]
mod death;
#[path = "../soak/faults.rs"]
mod faults;
#[path = "../soak/fuzz.rs"]
mod fuzz;
#[path = "../soak/mutants.rs"]
mod mutants;
#[path = "../soak/packages.rs"]
mod packages;
#[path = "../soak/planted.rs"]
mod planted;
#[path = "../soak/random.rs"]
mod random;
#[path = "../soak/safety.rs"]
mod safety;
#[path = "../soak/scale.rs"]
mod scale;
#[path = "../soak/siw.rs"]
mod siw;
#[path = "../soak/software.rs"]
mod software;
#[path = "../soak/stress.rs"]
mod stress;
