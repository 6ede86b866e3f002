//! Tests of what races/ compiles with atomics of its own, which work in its models alone.

mod vocab;
mod writer;
