//! stress-ng's stressors of memory: as without the shim, no gap, nothing leaked.
