//! Many mappings, threads, ranks, bytes, events: time and memory stay in proportion.
