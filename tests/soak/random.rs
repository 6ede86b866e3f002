//! Random calls in threads, with forks, signals and dlopen: coverage at every quiet point.
