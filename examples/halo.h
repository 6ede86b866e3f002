/* A 2-D grid in blocks, one a process, on which each point becomes the mean of its four neighbours:
 * what both versions of the example have in common. */
#ifndef HALO_H
#define HALO_H

#include <stdint.h>
#include <string.h>

/* Points along a side of a block; blocks in a row and in a column; steps. */
enum { SIDE = 96, ACROSS = 2, DOWN = 2, BLOCKS = ACROSS * DOWN, STEPS = 200 };

/* Sides of a block. A block's neighbour there has it on its opposite side. */
enum side { UP, LOW, LEFT, RIGHT, SIDES };
#define OPPOSITE(of) ((enum side)((of) ^ 1))

/* A block, with a frame of what its neighbours have. */
struct block {
	double now[SIDE + 2][SIDE + 2], next[SIDE + 2][SIDE + 2];
};

/* The block beside `rank` on a side, or -1 at the edge. */
static int neighbour(int rank, enum side side)
{
	int row = rank / ACROSS + (side == LOW) - (side == UP);
	int column = rank % ACROSS + (side == RIGHT) - (side == LEFT);
	return row < 0 || row >= DOWN || column < 0 || column >= ACROSS ? -1 : row * ACROSS + column;
}

static void begin(struct block *b, int rank)
{
	memset(b, 0, sizeof *b);
	for (int y = 1; y <= SIDE; y++)
		for (int x = 1; x <= SIDE; x++) {
			uint64_t point = (uint64_t)(rank / ACROSS * SIDE + y) * 1000003u +
					 (uint64_t)(rank % ACROSS * SIDE + x);
			b->now[y][x] = (double)(point * 2654435761u % 1000);
		}
}

/* The points on a side, of the block itself or of its frame, to or from a row. */
static double *at_edge(struct block *b, enum side side, int n, int frame)
{
	int low = frame ? 0 : 1, high = frame ? SIDE + 1 : SIDE;
	switch (side) {
	case UP:
		return &b->now[low][n + 1];
	case LOW:
		return &b->now[high][n + 1];
	case LEFT:
		return &b->now[n + 1][low];
	default:
		return &b->now[n + 1][high];
	}
}

static void take_edge(struct block *b, enum side side, double *row)
{
	for (int n = 0; n < SIDE; n++)
		row[n] = *at_edge(b, side, n, 0);
}

static void set_frame(struct block *b, enum side side, const double *row)
{
	for (int n = 0; n < SIDE; n++)
		*at_edge(b, side, n, 1) = row[n];
}

static void step(struct block *b)
{
	for (int y = 1; y <= SIDE; y++)
		for (int x = 1; x <= SIDE; x++)
			b->next[y][x] = 0.25 * (b->now[y - 1][x] + b->now[y + 1][x] + b->now[y][x - 1] +
						b->now[y][x + 1]);
	for (int y = 1; y <= SIDE; y++)
		memcpy(&b->now[y][1], &b->next[y][1], SIDE * sizeof(double));
}

/* Of the bits of all points, in whatever order they are added. */
static uint64_t checksum(const struct block *b)
{
	uint64_t sum = 0;
	for (int y = 1; y <= SIDE; y++)
		for (int x = 1; x <= SIDE; x++) {
			uint64_t bits;
			memcpy(&bits, &b->now[y][x], sizeof bits);
			sum += bits * 0x9e3779b97f4a7c15u;
		}
	return sum;
}

#endif
