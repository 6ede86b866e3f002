//! Who holds memory registered. The ledger knows what is there, `policy` what
//! is to be done with it; a registrar does it and says what came of it.

pub mod hca;
#[cfg(test)]
pub mod heap;
pub mod pin;
