"""What `benches/run` is made of: build, pairs, rows, report, plot."""
