//! What a stressor may take of the machine, and what it has to be told for that.

/// Words for prlimit(1).
pub fn limits(stressor: &str) -> &'static [&'static str] {
    match stressor {
        // They take what there is.
        "bigheap" | "brk" | "resources" | "oom-pipe" => &["--as=2147483648"],
        "mlockmany" | "mmapfork" => &["--as=1073741824"],
        _ => &[],
    }
}

/// Words for stress-ng.
pub fn words(stressor: &str) -> &'static [&'static str] {
    match stressor {
        // It would not run else, for it may lock all memory: it has no more than the above.
        "mlockmany" => &["--pathological", "--mlockmany-procs", "4"],
        // A virtual machine may say that its caches are very large.
        "prefetch" => &["--prefetch-l3-size", "1m"],
        "stream" => &["--stream-l3-size", "1m"],
        _ => &[],
    }
}

/// Seconds in make test: less for those that are busy with what memory holds, and map little.
pub fn moment(stressor: &str) -> u64 {
    match stressor {
        "bsearch" | "heapsort" | "hsearch" | "judy" | "lsearch" | "mergesort" | "qsort"
        | "radixsort" | "shellsort" | "tsearch" | "list" | "matrix" | "matrix-3d" | "randlist"
        | "skiplist" | "sparsematrix" | "str" | "tree" | "wcs" | "zlib" | "atomic" | "lockbus" => 1,
        _ => 2,
    }
}
