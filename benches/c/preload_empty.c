/* preload_empty.c: a preloaded library that does nothing: what preloading costs.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
int bench_preload_empty;
