#!/bin/bash
shim "$BIN/dumper"
begin "$BIN/dumper" stay >said
eventually grep -q '^done' said
served "$pid"
kill "$pid"
