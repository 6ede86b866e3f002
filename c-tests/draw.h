/* Numbers that look random and are the same each time. */
#ifndef REGALL_DRAW_H
#define REGALL_DRAW_H

#include <stdint.h>

static uint64_t seed_of_draws = 88172645463325252ull;
__attribute__((unused)) static uint64_t draw(uint64_t below)
{
	seed_of_draws ^= seed_of_draws << 13;
	seed_of_draws ^= seed_of_draws >> 7;
	seed_of_draws ^= seed_of_draws << 17;
	return (seed_of_draws >> 16) % below;
}

#endif
