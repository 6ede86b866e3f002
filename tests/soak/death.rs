//! Killed at any moment: nothing is left that the next start does not clean up.
