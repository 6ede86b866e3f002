//! What comes from outside of the process, made up: no parser of it breaks.
