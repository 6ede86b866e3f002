//! Programs with ideas of their own about memory: as without the shim.
